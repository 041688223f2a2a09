/* The encoded schedule: the layout that the runtime writes and that device code reads.
 *
 * SPDX-License-Identifier: MIT
 *
 * A C11 header shared by the runtime, host instruction sets and CUDA kernels. Only plain structs live
 * here; layout.h asserts where their fields lie. One table is encoded for each session and rank, with every address
 * resolved.
 */
#ifndef MKRT_DEVICE_TABLE_H_
#define MKRT_DEVICE_TABLE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define MKRT_STATIC_ASSERT(condition) static_assert(condition, #condition)
#else
#define MKRT_STATIC_ASSERT(condition) _Static_assert(condition, #condition)
#endif

/* Limits of the schedule format, version 1. They make a record a fixed size, so that a worker fetches any record with
 * one copy, and small, since every block keeps several in shared memory. mkrt.llm needs 11 operands (attention), 6
 * parameters, 1 wait and 1 signal; the rest is room for others. Since 0.1. */
enum {
  MKRT_TILE_DIMENSIONS = 4,
  MKRT_RECORD_OPERANDS = 12,
  MKRT_RECORD_PARAMETERS = 16,
  MKRT_RECORD_WAITS = 4,
  MKRT_RECORD_SIGNALS = 4,
  /* Counters lie 64 bytes apart: one cache line of a CPU, two sectors of a GPU's L2, so that waits on one do not slow
   * signals of its neighbours. */
  MKRT_COUNTER_STRIDE = 64
};

/* Which rank's instance of a tensor or counter an operand or signal means. The rank is
 * (own rank + offset + index[dimension]) modulo the rank count where `mode` is RELATIVE. Since 0.1. */
enum {
  MKRT_RANK_SELF = 0,    /* the own rank */
  MKRT_RANK_ALL = 1,     /* every rank: a write or signal that is repeated at each, a gathered read of each */
  MKRT_RANK_FIXED = 2,   /* rank `offset` */
  MKRT_RANK_RELATIVE = 3 /* as above; `dimension` 0xff leaves the index out */
};
/* Which ranks; zero: the own one. Since 0.1. */
typedef struct mkrt_rank_selector {
  uint8_t mode;
  uint8_t dimension;
  uint16_t offset;
} mkrt_rank_selector;

/* A slice of a tensor: `rows` rows of `size` bytes, `row_stride` bytes apart. The tile with indices i starts at
 * address + sum of i[d] * stride[d]. Where that sum plus `size` exceeds `limit`, each row ends at `limit` instead.
 * Since 0.1. */
typedef struct mkrt_operand {
  uint64_t address; /* of the first tile's slice on the own rank, the own rank's share included; 0: absent */
  uint64_t stride[MKRT_TILE_DIMENSIONS]; /* bytes */
  uint64_t size;                         /* bytes of a row */
  uint64_t limit;                        /* bytes */
  uint64_t row_stride;                   /* bytes */
  uint32_t rows;
  mkrt_rank_selector rank;
} mkrt_operand;

/* A tile waits until the counters first + sum of (i[d] / divide[d]) * stride[d], and the count - 1 that follow, have
 * each reached (epoch + step_offset) * step_total + value, where epoch counts the steps of the session's entry.
 * Since 0.1. */
typedef struct mkrt_wait {
  uint32_t first;
  uint32_t count;
  uint32_t stride[MKRT_TILE_DIMENSIONS];
  uint32_t divide[MKRT_TILE_DIMENSIONS]; /* at least 1 */
  uint32_t value;
  uint32_t step_total; /* what all tiles of one step add to each of these counters */
  int32_t step_offset; /* 0: this step, -1: the step before */
  /* 1: other ranks signal these counters too, so that order between ranks is needed (system scope on a GPU). */
  uint32_t across_ranks;
} mkrt_wait;

/* A finished tile adds 1 to the counter first + sum of (i[d] / divide[d]) * stride[d] of the selected ranks.
 * Since 0.1. */
typedef struct mkrt_signal {
  uint32_t first;
  uint32_t stride[MKRT_TILE_DIMENSIONS];
  uint32_t divide[MKRT_TILE_DIMENSIONS];
  mkrt_rank_selector rank;
  uint32_t across_ranks; /* as of a wait */
  uint32_t reserved;
} mkrt_signal;

/* An instruction over a grid of tiles, with every address resolved. Since 0.1. */
typedef struct mkrt_record {
  uint32_t opcode;                     /* number in the ISA */
  uint32_t index;                      /* of the record in its entry */
  uint64_t first_tile;                 /* sum of the tile counts of all records before */
  uint64_t tile_count;                 /* product of the grid, at least 1 */
  uint32_t grid[MKRT_TILE_DIMENSIONS]; /* unused dimensions are 1; the last dimension counts fastest */
  uint32_t operand_count;
  uint32_t wait_count;
  uint32_t signal_count;
  uint32_t reserved;
  uint32_t parameter[MKRT_RECORD_PARAMETERS]; /* u32, i32, or the bits of an f32, as the ISA says */
  mkrt_wait wait[MKRT_RECORD_WAITS];
  mkrt_signal signal[MKRT_RECORD_SIGNALS];
  mkrt_operand operand[MKRT_RECORD_OPERANDS]; /* in the order of the ISA's opcode */
  uint64_t padding;                           /* to a multiple of 16 bytes, for bulk copies */
} mkrt_record;

#endif /* MKRT_DEVICE_TABLE_H_ */
