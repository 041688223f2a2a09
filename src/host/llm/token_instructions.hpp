// The instructions that need no vector code of their own: embed, rotation and choose move a few kilobytes a step,
// sum_partials adds rows, which compilers vectorize. Plain code for every processor.
#pragma once

#include <cstdint>

#include "mkrt/host_isa.h"

namespace mkrt::host::llm {

uint32_t embed(const mkrt_host_tile* tile) noexcept;
uint32_t rotation(const mkrt_host_tile* tile) noexcept;
uint32_t choose(const mkrt_host_tile* tile) noexcept;
uint32_t sum_partials(const mkrt_host_tile* tile) noexcept;

}  // namespace mkrt::host::llm
