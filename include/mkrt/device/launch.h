/* The launch contract: what the runtime hands to a CUDA megakernel and what it gets back.
 *
 * SPDX-License-Identifier: MIT
 *
 * A C11 header shared by src/cuda and kernels; layout.h asserts where its fields lie. An image exports, as constants in
 * device memory with C names:
 *  - `mkrt_image`: an mkrt_image_info; the runtime refuses an image whose fields differ from its own;
 *  - `mkrt_run`: the kernel, `void mkrt_run(const mkrt_launch launch)`, one block an SM, launched cooperatively. It
 * need not look at the launch's `trace`;
 *  - `mkrt_run_traced`, which may be missing: the same for launches that are traced.
 */
#ifndef MKRT_DEVICE_LAUNCH_H_
#define MKRT_DEVICE_LAUNCH_H_

#include "mkrt/device/table.h"
#include "mkrt/mkrt.h" /* mkrt_trace_tile */

/* Grows whenever a struct of this header or of table.h changes. Since 0.1. */
#define MKRT_LAUNCH_VERSION 8u

/* Opcodes that an image may have. Since 0.1. */
enum { MKRT_IMAGE_OPCODES = 64 };

/* What an image was built for. Since 0.1. */
typedef struct mkrt_image_info {
  uint32_t launch_version; /* MKRT_LAUNCH_VERSION */
  uint32_t launch_size;    /* sizeof(mkrt_launch) */
  uint32_t record_size;    /* sizeof(mkrt_record) */
  uint32_t block_size;     /* threads of a block, at least 1 */
  uint64_t isa_fingerprint;
  uint32_t fixed_shared_bytes; /* shared memory of a block besides pages and activations */
  uint32_t page_bytes;         /* of the ring of weight pages */
  uint32_t minimum_pages;
  uint32_t preferred_pages; /* kept for the ring where activations would like more than their least */
  uint32_t maximum_pages;
  uint32_t maximum_shared_bytes; /* of a block, however much the device has */
  /* Operands that the kernel brings into an activation buffer, bit k for operand k of an opcode. A row takes its bytes
   * rounded up to 128, and row_padding where the opcode is not in `whole`. All of a record's together have less than
   * 2^32 - 1: the runtime refuses others. */
  uint32_t row_padding;
  uint32_t minimum_row_bytes; /* rows of opcodes that are not in `whole` may be brought in pieces of this size */
  uint32_t staged_operands[MKRT_IMAGE_OPCODES];
  uint8_t whole[MKRT_IMAGE_OPCODES];     /* 1: the opcode's staged operands must fit as they are */
  uint8_t more_rows[MKRT_IMAGE_OPCODES]; /* and so many more rows of the size of the last of them */
  /* As many more, at least more_rows, are made use of where they leave the ring its preferred pages. */
  uint8_t useful_rows[MKRT_IMAGE_OPCODES];
  /* Operands for which the kernel does what their rank selectors say, bit k for operand k. Of others it takes the own
   * rank's, so programs whose records say otherwise are refused. */
  uint32_t ranked_operands[MKRT_IMAGE_OPCODES];
} mkrt_image_info;

/* Which tile gave up, and why. The launch's last block copies it to host memory. Since 0.1. */
typedef struct mkrt_report {
  uint32_t status; /* 0, MKRT_ERROR_DEADLINE or _FAULT, or what an abort word was; written last */
  uint32_t rank;
  uint32_t sm;
  /* Or MKRT_REPORT_BEGIN or _END: the rank waited for the others, `value_seen` of them had come. Or MKRT_REPORT_LEFT:
   * no tile of the rank gave up; it left because its abort word said so. Only where there are several ranks. */
  uint32_t record;
  uint64_t tile; /* number inside the record */
  uint64_t step; /* of the launch */
  uint32_t counter;
  uint32_t value_seen;
  uint32_t value_wanted;
  uint32_t fault;          /* 1-based number in the opcode's list */
  uint64_t waited_ns;      /* before it gave up */
  uint64_t timeline_value; /* of the launch that it belongs to; others may follow before the host looks */
} mkrt_report;
/* Values of mkrt_report.record that are no records. Since 0.1. */
enum { MKRT_REPORT_LEFT = 0x7ffffffd, MKRT_REPORT_BEGIN = 0x7ffffffe, MKRT_REPORT_END = 0x7fffffff };

/* State of a session on a rank that outlives a launch. Device memory; zero after a reset. Since 0.1. */
typedef struct mkrt_control {
  uint64_t queue;       /* next tile number of the running launch; zero between launches */
  uint32_t blocks_done; /* blocks that left the running launch; zero between launches */
  /* 0, or why everybody leaves: in the lower 16 bits an mkrt_status. A host sets _CANCELLED, _DRIVER or _PEER, and
   * above it the number of its process. */
  uint32_t abort;
  uint32_t padding[28]; /* the queue's line is for the queue alone */
  /* Of all tiles that wait when one gives up, the first in the order of the queue: the others wait for it. */
  mkrt_report report;
  uint64_t report_place; /* its place in that order */
  uint32_t report_lock;  /* 1: a block is writing the report */
  /* Where there are several ranks no tile of a launch runs before every rank's launch has begun, and none ends before
   * the tiles of all have: a launch is one piece of work on every rank's stream. Each rank adds 1 at all ranks. */
  uint32_t ranks_begun;
  uint32_t ranks_ended;
  uint32_t launches; /* that the rank has finished */
  uint32_t padding_after[10];
} mkrt_control;

/* One launch runs all ranks that share a device, its blocks divided between them, so that they are resident together
 * and may wait for each other. Since 0.1. */
typedef struct mkrt_launch {
  /* What belongs to a rank: that of the first block here, others in local_ranks. */
  uint64_t records;     /* mkrt_record[record_count], 16-byte aligned */
  uint64_t first_tiles; /* uint32_t[record_count + 1]: each record's first tile, then the tiles of a step */
  uint64_t control;     /* mkrt_control */
  uint64_t epoch;       /* uint32_t: steps of this entry that earlier launches finished; the last block adds */
  uint64_t counters;    /* the entry's counters, MKRT_COUNTER_STRIDE apart */
  uint64_t rank_delta;  /* int64_t[rank_count]: see mkrt_host_tile; the control words lie as far apart */
  uint64_t report;      /* mkrt_report in host memory; its status is written last, and only when a tile gave up */
  uint64_t timeline;    /* uint64_t in host memory that the last block sets to timeline_value */
  uint64_t trace;       /* mkrt_trace_tile[blocks of the rank][trace_tiles], or 0 */
  uint32_t rank;
  uint32_t blocks; /* most blocks that the rank may have */
  /* What is the same for all ranks of the launch. */
  uint64_t timeline_value;
  uint64_t wait_limit_ns;
  /* mkrt_launch[local_rank_count] in device memory, of which the fields before timeline_value count; not read where
   * there is one rank, whose blocks are the whole grid. The first min(blocks, block_limit) blocks of the grid are the
   * first rank's, and so on. */
  uint64_t local_ranks;
  uint32_t local_rank_count;
  uint32_t block_limit;  /* of each rank */
  uint32_t record_count; /* at most MKRT_LAUNCH_RECORDS */
  uint32_t step_count;
  uint32_t queue_mode; /* MKRT_QUEUE_... of mkrt.h */
  uint32_t rank_count;
  uint32_t page_count;        /* pages of the ring */
  uint32_t activation_bytes;  /* of each of the two activation buffers, a multiple of 128 */
  uint32_t outstanding_pages; /* pages that may be on their way at a time */
  uint32_t trace_tiles;       /* room for each block's first so many tiles */
} mkrt_launch;

/* first_tiles of a step is kept in shared memory; a schedule of an 80-layer model has about 500 records. Since 0.1. */
enum { MKRT_LAUNCH_RECORDS = 1024 };

#endif /* MKRT_DEVICE_LAUNCH_H_ */
