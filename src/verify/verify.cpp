#include "verify/verify.hpp"

#include "verify/conflicts.hpp"
#include "verify/counters.hpp"
#include "verify/effort.hpp"
#include "verify/groups.hpp"
#include "verify/order.hpp"
#include "verify/report.hpp"
#include "verify/slices.hpp"

namespace mkrt::verify {
namespace {

// Each check relies on those before it.
void check_entry(const Context& context, package::Entry& entry, Effort& effort) {
  effort.begin_entry(base::quoted(entry.name));
  for (uint32_t record = 0; record < entry.records.size(); ++record) {
    check_slices(context, record, effort);
    check_counter_ranges(context, record);
  }
  const std::vector<RecordGroups> groups = group_tiles(context, effort);
  resolve_waits(context, groups, effort, entry);
  const Order order(context, groups, effort);
  check_conflicts(context, groups, order, effort);
}

}  // namespace

void check(package::Program& program) {
  Effort effort;
  for (package::Entry& entry : program.entries) check_entry({program, entry}, entry, effort);
}

}  // namespace mkrt::verify
