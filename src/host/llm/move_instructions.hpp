// Data movement between ranks: copy, and the sums of every rank's tensor. Plain code for every processor, bound by
// memory.
#pragma once

#include <cstdint>

#include "mkrt/host_isa.h"

namespace mkrt::host::llm {

uint32_t copy(const mkrt_host_tile* tile) noexcept;
uint32_t reduce_f32(const mkrt_host_tile* tile) noexcept;
uint32_t reduce_f16(const mkrt_host_tile* tile) noexcept;
uint32_t reduce_bf16(const mkrt_host_tile* tile) noexcept;

}  // namespace mkrt::host::llm
