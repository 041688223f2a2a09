// Whether any two tiles that touch the same elements, one of them writing, are ordered.
#pragma once

#include <vector>

#include "verify/effort.hpp"
#include "verify/groups.hpp"
#include "verify/order.hpp"
#include "verify/report.hpp"

namespace mkrt::verify {

void check_conflicts(const Context& context, const std::vector<RecordGroups>& groups, const Order& order,
                     Effort& effort);

}  // namespace mkrt::verify
