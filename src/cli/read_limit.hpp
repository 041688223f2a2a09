// How fast this machine's threads can read memory: what a decoder, which reads all weights for each token, is held to.
#pragma once

#include <cstdint>

namespace mkrt::cli {

// Bytes a second that `threads` threads reach together with a plain loop of vector loads over memory that no cache
// holds; the best of several passes. Takes about a second and half a gigabyte of memory. Throws Error where that
// memory is not to be had.
double measure_read_limit(uint32_t threads);

}  // namespace mkrt::cli
