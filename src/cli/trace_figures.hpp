// What a trace says about a device's memory: when a worker had no weights on their way, and why; and the times of
// records.
//
// Depends on mkrt.h alone, so that the tool, benchmarks and tests share it. Times are nanoseconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "mkrt/mkrt.h"

namespace mkrt::cli {

// The tiles that one worker ran in one execute, in their order; every one of them, and nothing after them.
using WorkerTrace = std::vector<mkrt_trace_tile>;

// Why no weights were on their way to a worker.
enum class Idle : uint32_t {
  // The ring of pages or the slots for tiles were full, and the consumers had nothing to do but to wait for a tile's
  // counters and inputs.
  dependency,
  // The ring was full, and the consumers were busy with what it held; or the worker held back while it signalled.
  ring_full,
  // The ring had room, and no further tile was known because those in the slots were being computed or stored.
  ring_empty,
  // There was a free slot, and the tile's number or record was on its way; or the launch was starting; or, in dynamic
  // mode, the worker left the next tile to others.
  fetch,
  // The worker had no further tile.
  tail,
};
inline constexpr size_t kIdleCauses = 5;
inline constexpr const char* kIdleNames[kIdleCauses] = {"dependency", "ring_full", "ring_empty", "fetch", "tail"};

struct Window {
  uint64_t begin = 0, end = 0;
};
// From the first event of all workers to their last. Zero where there is no tile.
Window window_of(std::span<const WorkerTrace> workers);

// A worker's share of a window; streaming and all of idle together are exactly as long as the window.
struct MemoryTimes {
  uint64_t streaming = 0;
  std::array<uint64_t, kIdleCauses> idle{};
};
MemoryTimes memory_times(const WorkerTrace& tiles, Window window);

// The steps that a tile goes through, as events of a trace.
inline constexpr uint32_t kRecordEvents[] = {MKRT_TRACE_WAIT_END, MKRT_TRACE_INPUTS,      MKRT_TRACE_PREPARED,
                                             MKRT_TRACE_CONSUMED, MKRT_TRACE_STORE_BEGIN, MKRT_TRACE_STORE_END,
                                             MKRT_TRACE_SIGNALLED};
inline constexpr size_t kRecordParts = std::size(kRecordEvents);
inline constexpr const char* kRecordPartNames[kRecordParts] = {"waited", "inputs", "prepared", "consumed",
                                                               "summed", "stored", "signalled"};

// One record in one step: from the last signal of the record before it to its own last signal, so that the times of all
// records add up to the step. The parts say how much later the last tile came to each event than to the one before; an
// event that no tile has takes no time.
struct RecordTimes {
  uint32_t step = 0, record = 0, tiles = 0;
  uint64_t total = 0;
  std::array<uint64_t, kRecordParts> parts{};
  std::vector<uint64_t> streaming;  // of each tile with weights: from the first that it asked for to the last
};
// All records of all steps in their order, but for the very first, before which there is no signal.
std::vector<RecordTimes> record_times(std::span<const WorkerTrace> workers);

}  // namespace mkrt::cli
