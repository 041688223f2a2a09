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
CheckedEntry check_entry(const Context& context) {
  Effort effort(base::quoted(context.entry.name));
  for (uint32_t record = 0; record < context.entry.records.size(); ++record) {
    check_slices(context, record);
    check_counter_ranges(context, record);
  }
  const std::vector<RecordGroups> groups = group_tiles(context, effort);
  CheckedEntry result = resolve_waits(context, groups, effort);
  const Order order(context, groups, result, effort);
  check_conflicts(context, groups, order, effort);
  return result;
}

}  // namespace

Schedule check(const package::Program& program) {
  Schedule result;
  for (const package::Entry& entry : program.entries) result.entries.push_back(check_entry({program, entry}));
  return result;
}

}  // namespace mkrt::verify
