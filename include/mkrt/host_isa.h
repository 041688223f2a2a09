/* Instruction sets for host ranks.
 *
 * SPDX-License-Identifier: MIT
 *
 * mkrt.llm is built into the library. An application that brings an instruction set of its own gives its host code to
 * mkrt_runtime_create with the extension below; the package's ISA definition finds it by name and fingerprint.
 */
#ifndef MKRT_HOST_ISA_H_
#define MKRT_HOST_ISA_H_

#include "mkrt/device/table.h"
#include "mkrt/mkrt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What an instruction receives to work on one tile. Valid during the call only. Since 0.1. */
typedef struct mkrt_host_tile {
  const mkrt_record* record;
  uint32_t index[MKRT_TILE_DIMENSIONS]; /* the tile's indices in the record's grid */
  uint32_t rank;
  uint32_t rank_count;
  uint64_t step; /* of the execute, from 0 */
  /* rank_delta[r] added to an own-rank address gives the address at rank r; rank_delta[rank] is 0. Weight tensors
   * exist only on the own rank. */
  const int64_t* rank_delta;
  void* scratch; /* the worker's own memory, 64-byte aligned; holds anything at first, then what its last tile left */
  size_t scratch_size;     /* in bytes */
  uint64_t execute_serial; /* differs between any two executes of a process, so that what scratch caches can be told */
} mkrt_host_tile;

/* Computes a tile: reads and writes only its operands' slices. Returns 0, or the 1-based number of a fault that the
 * ISA definition lists. Called from worker threads; must not block, throw or call mkrt. Since 0.1. */
typedef uint32_t (*mkrt_host_instruction)(const mkrt_host_tile* tile);

/* The code of one instruction set. Since 0.1. */
typedef struct mkrt_host_isa {
  uint32_t struct_size;
  uint32_t opcode_count;
  uint64_t fingerprint;                      /* of the ISA definition; mkrt inspect prints it */
  const char* name;                          /* such as "mkrt.llm" */
  const mkrt_host_instruction* instructions; /* opcode_count functions, in the order of the definition */
  uint64_t scratch_size;                     /* bytes that each worker needs; 0: none */
} mkrt_host_isa;

/* On mkrt_runtime_desc.next. The array and what it points to must outlive the runtime. Since 0.1. */
typedef struct mkrt_host_isa_extension {
  mkrt_extension base; /* type MKRT_EXTENSION_HOST_ISA, struct_size of the whole */
  uint32_t isa_count;
  uint32_t reserved; /* zero */
  const mkrt_host_isa* const* isas;
} mkrt_host_isa_extension;

/* First byte of operand `number` of a tile on its own rank, NULL where the operand is absent. Since 0.1. */
static inline void* mkrt_host_operand(const mkrt_host_tile* tile, uint32_t number) {
  const mkrt_operand* operand = &tile->record->operand[number];
  uint64_t address = operand->address;
  if (address == 0) return NULL;
  for (int d = 0; d < MKRT_TILE_DIMENSIONS; ++d) address += tile->index[d] * operand->stride[d];
  return (void*)(uintptr_t)address;
}

/* Bytes of a row of operand `number` of a tile, cut at the operand's limit. Since 0.1. */
static inline uint64_t mkrt_host_operand_size(const mkrt_host_tile* tile, uint32_t number) {
  const mkrt_operand* operand = &tile->record->operand[number];
  uint64_t start = 0;
  for (int d = 0; d < MKRT_TILE_DIMENSIONS; ++d) start += tile->index[d] * operand->stride[d];
  if (start >= operand->limit) return 0;
  return operand->limit - start < operand->size ? operand->limit - start : operand->size;
}

/* Ranks that operand `number` of a tile means: [*out_first, *out_first + *out_count) modulo the rank count.
 * Since 0.1. */
static inline void mkrt_host_operand_ranks(const mkrt_host_tile* tile, uint32_t number, uint32_t* out_first,
                                           uint32_t* out_count) {
  const mkrt_rank_selector selector = tile->record->operand[number].rank;
  *out_count = selector.mode == MKRT_RANK_ALL ? tile->rank_count : 1;
  switch (selector.mode) {
    case MKRT_RANK_FIXED: *out_first = selector.offset; break;
    case MKRT_RANK_RELATIVE:
      *out_first = (tile->rank + selector.offset + (selector.dimension == 0xff ? 0 : tile->index[selector.dimension])) %
                   tile->rank_count;
      break;
    default: *out_first = selector.mode == MKRT_RANK_SELF ? tile->rank : 0; break;
  }
}

#ifdef __cplusplus
}
#endif

#endif /* MKRT_HOST_ISA_H_ */
