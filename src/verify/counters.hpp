// Counters: what a step adds to each, and whether what is waited for can come.
#pragma once

#include <vector>

#include "verify/effort.hpp"
#include "verify/groups.hpp"
#include "verify/report.hpp"

namespace mkrt::verify {

// Refuses waits and signals of counters outside their array, of unknown ranks or steps. Needed before group_tiles.
void check_counter_ranges(const Context& context, uint32_t record);

// Fills in the step_total of the waits of `entry`, which is the context's. Refuses waits that cannot be met, that name
// counters with different totals, or that a later record or the own one would have to meet; and counters that could
// overflow.
void resolve_waits(const Context& context, const std::vector<RecordGroups>& groups, Effort& effort,
                   package::Entry& entry);

}  // namespace mkrt::verify
