// What holds of a record by itself: its slices lie in their tensors, its rank selectors exist, its constraints hold.
#pragma once

#include "verify/effort.hpp"
#include "verify/report.hpp"

namespace mkrt::verify {

void check_slices(const Context& context, uint32_t record, Effort& effort);

}  // namespace mkrt::verify
