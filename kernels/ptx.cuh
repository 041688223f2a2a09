// One small function for each PTX instruction that the kernels use, and the switches between chips.
//
// Names say what the instruction does, not what it is called. Nothing here knows of schedules.
#pragma once

#include <cstdint>

// sm_90 and newer copy in bulk; older chips copy 16 bytes a lane with cp.async. Everything else is the same code.
// Defined as 0 from outside, kernels for newer chips are as for older ones.
#ifndef MKRT_BULK_COPY
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MKRT_BULK_COPY 1
#else
#define MKRT_BULK_COPY 0
#endif
#endif

// Bytes of shared memory that a block may have on the chip: 163 KB on 8.0 and 8.7, 99 KB on the others of 8.x and on
// 12.x, 227 KB on those between. Defined from outside, kernels are as for chips with so much, whatever theirs has.
#ifdef MKRT_SHARED_MEMORY
#define MKRT_CHIP_SHARED_MEMORY MKRT_SHARED_MEMORY
#elif !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
#define MKRT_CHIP_SHARED_MEMORY 232448
#elif __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870
#define MKRT_CHIP_SHARED_MEMORY 166912
#else
#define MKRT_CHIP_SHARED_MEMORY 101376
#endif

namespace mkrt::ptx {

constexpr uint32_t full_mask = 0xffffffffu;

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ inline uint32_t lane_number() { return threadIdx.x & 31u; }
// Read anew at each place: a register that is kept from tile to tile ends up in local memory instead, which every
// acquire empties out of the L1 cache.
__device__ inline uint32_t thread_number() {
  uint32_t number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return number;
}
__device__ inline uint64_t time_ns() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// ---- shared memory by address --------------------------------------------------------------------------------------

// Loads 16 bytes of shared memory.
__device__ inline uint4 load_shared_16(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address));
  return value;
}

// ---- mbarriers: arrival counts of a block -------------------------------------------------------------------------

// Arrivals of a warp that is done with shared memory and has come through __syncwarp. One lane's is enough: release is
// cumulative and covers what the other lanes did before the __syncwarp. compute-sanitizer's racecheck follows an order
// only from the lane that arrives, so every lane does in kernels that are built for it, with MKRT_CHECK_ARRIVALS.
#ifndef MKRT_CHECK_ARRIVALS
#define MKRT_CHECK_ARRIVALS 0
#endif
constexpr uint32_t warp_arrivals = MKRT_CHECK_ARRIVALS ? 32 : 1;
__device__ inline bool arrives() { return MKRT_CHECK_ARRIVALS || lane_number() == 0; }

__device__ inline void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes initialized barriers visible to the copy engine.
__device__ inline void barrier_init_fence() {
#if MKRT_BULK_COPY
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// Arrives; release at block scope, so what the caller wrote is seen by whoever waits.
__device__ inline void barrier_arrive(uint64_t* barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(shared_address(barrier))
               : "memory");
}
// The same for lanes where `enabled`, without a branch.
__device__ inline void barrier_arrive_if(uint64_t* barrier, bool enabled) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 state; setp.ne.u32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(
          shared_address(barrier)),
      "r"(static_cast<uint32_t>(enabled))
      : "memory");
}
// True when the phase of that parity is complete; acquire at block scope. Never suspends.
__device__ inline bool barrier_ready(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return done != 0;
}
// True when the phase of that parity is complete; acquire at block scope. May suspend for a short, bounded time.
__device__ inline bool barrier_test(uint64_t* barrier, uint32_t parity) {
#if MKRT_BULK_COPY
  uint32_t done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return done != 0;
#else
  return barrier_ready(barrier, parity);
#endif
}

// ---- copies into shared memory that the copying thread waits for ----------------------------------------------------

// Copies 16 bytes past the L1 cache; of those only the first `there` are read, the others become zeros.
__device__ inline void async_copy_16(void* shared, const void* global, uint32_t there = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(there)
               : "memory");
}
// The same for 4 bytes, or none.
__device__ inline void async_copy_4(void* shared, const void* global, uint32_t there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(there)
               : "memory");
}
// Waits for all copies of the calling thread.
__device__ inline void async_copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- copies into shared memory that complete on an mbarrier --------------------------------------------------------

// L2 policy for data that is read once, so that it does not push activations and counters out.
__device__ inline uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Arrivals that a warp-wide copy makes on its barrier: one with a byte count, or one a lane.
constexpr uint32_t copy_arrivals = MKRT_BULK_COPY ? 1 : 32;

#if MKRT_BULK_COPY
// Announces `bytes` on the barrier and arrives. One lane.
__device__ inline void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Copies `bytes` (a multiple of 16, both addresses too). One lane.
__device__ inline void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
__device__ inline void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
// Copies `bytes` of shared memory (a multiple of 16, both addresses too) to memory that may be a peer's. One lane,
// which puts what it copied into a group and waits for it.
__device__ inline void bulk_store(void* global, const void* shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
               "r"(bytes)
               : "memory");
}
__device__ inline void bulk_stores_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until shared memory has been read for all groups of the calling thread.
__device__ inline void bulk_stores_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// Until they are written, and visible to the calling thread.
__device__ inline void bulk_stores_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
#else
// Arrives when the calling lane's copies so far are complete; counts as one of the barrier's arrivals.
__device__ inline void async_copy_arrive(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
#endif

// Order between ordinary accesses and the copy engine's: what this thread did to shared memory comes before what the
// copy engine does to it next.
__device__ inline void fence_copy_engine_shared() {
#if MKRT_BULK_COPY
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// The same for global memory: what an acquire made visible to ordinary loads is visible to the copy engine next, and
// what the copy engine has written is what a release then passes on. Without a state space this fence would wait for
// memory as a release does, in each link of the chain (PERFORMANCE.md).
__device__ inline void fence_copy_engine_global() {
#if MKRT_BULK_COPY
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

// ---- global memory that is read once -------------------------------------------------------------------------------

// Loads 16 bytes that nobody writes meanwhile, past the L1 cache.
__device__ inline uint4 load_once_16(uint64_t address) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address));
  return value;
}

// ---- global memory with order and scope ---------------------------------------------------------------------------

__device__ inline uint32_t load_acquire_gpu(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline uint32_t load_acquire_system(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline uint32_t load_relaxed_gpu(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline uint64_t load_relaxed_gpu(const uint64_t* address) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline void add_release_gpu(uint32_t* address, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
__device__ inline void add_release_system(uint32_t* address, uint32_t value) {
  asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
// Puts what the thread knows to be written, and what it has read, before its relaxed stores and adds that follow.
__device__ inline void fence_release_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ inline void add_relaxed_system(uint32_t* address, uint32_t value) {
  asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
__device__ inline uint64_t fetch_add_relaxed_gpu(uint64_t* address, uint64_t value) {
  uint64_t old;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(address), "l"(value) : "memory");
  return old;
}
__device__ inline uint32_t fetch_add_acq_rel_gpu(uint32_t* address, uint32_t value) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(address), "r"(value) : "memory");
  return old;
}
// Adds one, or makes zero what is `most` or more. Returns what was there.
__device__ inline uint32_t fetch_increment_acq_rel_gpu(uint32_t* address, uint32_t most) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(old) : "l"(address), "r"(most) : "memory");
  return old;
}
__device__ inline uint32_t compare_swap_relaxed_gpu(uint32_t* address, uint32_t expected, uint32_t value) {
  uint32_t old;
  asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(old)
               : "l"(address), "r"(expected), "r"(value)
               : "memory");
  return old;
}
__device__ inline uint32_t compare_swap_relaxed_system(uint32_t* address, uint32_t expected, uint32_t value) {
  uint32_t old;
  asm volatile("atom.relaxed.sys.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(old)
               : "l"(address), "r"(expected), "r"(value)
               : "memory");
  return old;
}
__device__ inline void store_release_system(uint32_t* address, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
__device__ inline void store_release_system(uint64_t* address, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

// ---- a barrier of threads ------------------------------------------------------------------------------------------

// Waits until `threads` threads, whole warps, have come to the block's hardware barrier `number`; what each did before
// is visible to all after. How many of them said `flag`. All lanes of a warp together.
__device__ inline uint32_t threads_barrier_count(uint32_t number, uint32_t threads, bool flag) {
  uint32_t count;
  asm volatile("{ .reg .pred said; setp.ne.u32 said, %1, 0; bar.red.popc.u32 %0, %2, %3, said; }"
               : "=r"(count)
               : "r"(static_cast<uint32_t>(flag)), "r"(number), "r"(threads)
               : "memory");
  return count;
}

// ---- shared memory flags ------------------------------------------------------------------------------------------

// racecheck takes these for ordinary accesses, which they are not, and reports a race. In kernels that are built for it
// they are atomic operations, which it knows.
__device__ inline uint32_t load_relaxed_block(const uint32_t* shared) {
  uint32_t value;
#if MKRT_CHECK_ARRIVALS
  asm volatile("atom.relaxed.cta.shared::cta.or.b32 %0, [%1], 0;"
               : "=r"(value)
               : "r"(shared_address(shared))
               : "memory");
#else
  asm volatile("ld.relaxed.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(shared_address(shared)) : "memory");
#endif
  return value;
}
__device__ inline void store_relaxed_block(uint32_t* shared, uint32_t value) {
#if MKRT_CHECK_ARRIVALS
  asm volatile("{ .reg .b32 old; atom.relaxed.cta.shared::cta.exch.b32 old, [%0], %1; }" ::"r"(shared_address(shared)),
               "r"(value)
               : "memory");
#else
  asm volatile("st.relaxed.cta.shared::cta.u32 [%0], %1;" ::"r"(shared_address(shared)), "r"(value) : "memory");
#endif
}

// ---- arithmetic ---------------------------------------------------------------------------------------------------

// d += a b on a 16 x 16 x 8 piece: a 16 x 16 bf16 row-major, b 16 x 8 bf16 column-major, d f32.
__device__ inline void multiply_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                     uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same for f16.
__device__ inline void multiply_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// d += a b on a 16 x 8 x 8 piece: a 16 x 8, b 8 x 8.
__device__ inline void multiply_f16_short(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(b));
}
// Two 8 x 8 pieces of 16-bit elements, transposed: lane l below 16 gives the address of row l, 16 bytes in shared
// memory.
__device__ inline void load_transposed(uint32_t (&out)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(out[0]), "=r"(out[1])
               : "r"(shared_address(row))
               : "memory");
}

}  // namespace mkrt::ptx
