// The instructions around a step's tokens: embed, rotation, choose. They move a few kilobytes a step, so they are plain
// code for every processor.
#pragma once

#include <cstdint>

#include "mkrt/host_isa.h"

namespace mkrt::host::llm {

uint32_t embed(const mkrt_host_tile* tile) noexcept;
uint32_t rotation(const mkrt_host_tile* tile) noexcept;
uint32_t choose(const mkrt_host_tile* tile) noexcept;

}  // namespace mkrt::host::llm
