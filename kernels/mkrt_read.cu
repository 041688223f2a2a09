// The kernel of mkrt.read: brings tiles' slices out of memory as fast as they come, and does nothing with them. It is
// what `mkrt bench` holds decoding to.
//
// Every warp takes tiles of its own and shares nothing with the others of its block. How a block starts and ends, its
// ranks, the control words and the timeline are the machine's.
#include "machine.cuh"
#include "mkrt_isa/read.hpp"

namespace mkrt::read {

namespace isa = mkrt::isa::read;
using machine::control;
using machine::launch;
using machine::shared;

// 1024 threads with eight pieces of 16 bytes each have 128 KB on their way to an SM. An H200 gives one 35 bytes a ns:
// that lasts for 3.7 us, several times what memory takes to answer. More threads a block cannot have, and the eight
// pieces take half of the 64 registers that so many threads leave each.
constexpr uint32_t block_threads = 1024;
constexpr uint32_t block_warps = block_threads / 32;
constexpr uint32_t pieces_on_the_way = 8;
static_assert(sizeof(machine::Shared::partial) >= block_threads * sizeof(uint32_t), "room for each thread's sum");

// Tiles of a warp between two looks at the abort word. With tiles of 16 KB that is 256 KB, a quarter of a millisecond
// at the 1.1 bytes a ns that are a warp's share of an H200.
constexpr uint32_t tiles_between_looks = 16;

// Reads the pieces of 16 bytes that lie in a slice; each lane adds its own to `sum`. A warp together.
__device__ inline void read_slice(uint64_t begin, uint64_t size, uint32_t& sum) {
  const uint64_t end = (begin + size) / 16 * 16;
  uint64_t at = (begin + 15) / 16 * 16 + ptx::lane_number() * 16;
  constexpr uint32_t row = 32 * 16;  // what a warp reads at once
  for (; at + (pieces_on_the_way - 1) * row < end; at += pieces_on_the_way * row) {
    uint4 piece[pieces_on_the_way];
#pragma unroll
    for (uint32_t i = 0; i < pieces_on_the_way; ++i) piece[i] = ptx::load_once_16(at + i * row);
#pragma unroll
    for (uint32_t i = 0; i < pieces_on_the_way; ++i) sum ^= piece[i].x ^ piece[i].y ^ piece[i].z ^ piece[i].w;
  }
  for (; at < end; at += row) sum ^= ptx::load_once_16(at).x;
}

__device__ __noinline__ void refuse(const mkrt_record& record, uint32_t tile, uint32_t step) {
  mkrt_report report{};
  report.status = MKRT_ERROR_FAULT;
  report.record = record.index;
  report.tile = tile;
  report.step = step;
  report.fault = isa::read::fault_waits_and_signals_have_no_meaning_here;
  machine::leave_all(report, static_cast<uint64_t>(step) << 32 | (record.first_tile + tile));
}

// False when the block is leaving.
__device__ inline bool read_tile(const mkrt_record& record, uint32_t tile, uint32_t step, uint32_t& sum) {
  if (record.wait_count + record.signal_count != 0) {
    if (ptx::lane_number() == 0) refuse(record, tile, step);
    __syncwarp();
    return false;
  }
  const mkrt_operand& data = record.operand[isa::read::data];
  uint64_t start = 0;
  uint32_t rest = tile;
#pragma unroll
  for (int d = MKRT_TILE_DIMENSIONS - 1; d >= 0; --d) {
    start += rest % record.grid[d] * data.stride[d];
    rest /= record.grid[d];
  }
  read_slice(data.address + start, min(data.size, data.limit - start), sum);
  return true;
}

// Returns a sum of what the thread read.
__device__ uint32_t read_tiles() {
  const bool dynamic = launch().queue_mode == MKRT_QUEUE_DYNAMIC;
  const uint64_t tiles_per_step = shared().first_tile[launch().record_count];
  const auto* records = reinterpret_cast<const mkrt_record*>(launch().records);
  uint64_t number = uint64_t{shared().block} * block_warps + threadIdx.x / 32;
  uint32_t sum = 0;
  for (uint32_t turn = 0;; ++turn) {
    if (dynamic) {
      if (ptx::lane_number() == 0) number = ptx::fetch_add_relaxed_gpu(&control()->queue, 1);
      number = __shfl_sync(ptx::full_mask, number, 0);
    }
    const auto step = static_cast<uint32_t>(number / tiles_per_step);
    if (step >= launch().step_count) break;
    if (turn % tiles_between_looks == 0 && __any_sync(ptx::full_mask, ptx::load_relaxed_gpu(&control()->abort) != 0)) {
      break;
    }
    const auto tile = static_cast<uint32_t>(number % tiles_per_step);
    uint32_t record = 0;
    while (tile >= shared().first_tile[record + 1]) ++record;
    if (!read_tile(records[record], tile - shared().first_tile[record], step, sum)) break;
    number += uint64_t{shared().block_count} * block_warps;
  }
  return sum;
}

constexpr mkrt_image_info image_info() {
  mkrt_image_info info{};
  info.launch_version = MKRT_LAUNCH_VERSION;
  info.launch_size = sizeof(mkrt_launch);
  info.record_size = sizeof(mkrt_record);
  info.block_size = block_threads;
  info.isa_fingerprint = isa::fingerprint;
  info.fixed_shared_bytes = machine::fixed_shared_bytes;
  // A ring is part of the launch interface, and nothing goes through this one.
  info.page_bytes = 128;
  info.minimum_pages = 1;
  info.preferred_pages = 1;
  info.maximum_pages = 1;
  info.maximum_shared_bytes = UINT32_MAX;
  return info;
}

}  // namespace mkrt::read

extern "C" {

__device__ __constant__ mkrt_image_info mkrt_image = mkrt::read::image_info();

__global__ void __launch_bounds__(mkrt::read::block_threads, 1) mkrt_run(const __grid_constant__ mkrt_launch launch) {
  using namespace mkrt;
  machine::start_block(launch);
  if (machine::wait_for_ranks_to_begin()) {
    // Somewhere, or the assembler would leave out the loads, whose results nobody needs.
    auto* sums = reinterpret_cast<uint32_t*>(machine::shared().partial);
    ptx::store_relaxed_block(sums + threadIdx.x, read::read_tiles());
  }
  machine::finish_block();
}

}  // extern "C"
