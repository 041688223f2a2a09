/* Where every field lies that one of runtime and kernels writes and the other reads.
 *
 * SPDX-License-Identifier: MIT
 *
 * Both sides include it, so that neither can be built with another layout. A test compares it with the structs: none of
 * their fields is missing here.
 */
#ifndef MKRT_DEVICE_LAYOUT_H_
#define MKRT_DEVICE_LAYOUT_H_

#include "mkrt/device/launch.h"

#define MKRT_OFFSET(type, field, offset) MKRT_STATIC_ASSERT(offsetof(type, field) == (offset))
#define MKRT_SIZE(type, size) MKRT_STATIC_ASSERT(sizeof(type) == (size))

MKRT_OFFSET(mkrt_rank_selector, mode, 0);
MKRT_OFFSET(mkrt_rank_selector, dimension, 1);
MKRT_OFFSET(mkrt_rank_selector, offset, 2);
MKRT_SIZE(mkrt_rank_selector, 4);

MKRT_OFFSET(mkrt_operand, address, 0);
MKRT_OFFSET(mkrt_operand, stride, 8);
MKRT_OFFSET(mkrt_operand, size, 40);
MKRT_OFFSET(mkrt_operand, limit, 48);
MKRT_OFFSET(mkrt_operand, row_stride, 56);
MKRT_OFFSET(mkrt_operand, rows, 64);
MKRT_OFFSET(mkrt_operand, rank, 68);
MKRT_SIZE(mkrt_operand, 72);

MKRT_OFFSET(mkrt_wait, first, 0);
MKRT_OFFSET(mkrt_wait, count, 4);
MKRT_OFFSET(mkrt_wait, stride, 8);
MKRT_OFFSET(mkrt_wait, divide, 24);
MKRT_OFFSET(mkrt_wait, value, 40);
MKRT_OFFSET(mkrt_wait, step_total, 44);
MKRT_OFFSET(mkrt_wait, step_offset, 48);
MKRT_OFFSET(mkrt_wait, across_ranks, 52);
MKRT_SIZE(mkrt_wait, 56);

MKRT_OFFSET(mkrt_signal, first, 0);
MKRT_OFFSET(mkrt_signal, stride, 4);
MKRT_OFFSET(mkrt_signal, divide, 20);
MKRT_OFFSET(mkrt_signal, rank, 36);
MKRT_OFFSET(mkrt_signal, across_ranks, 40);
MKRT_OFFSET(mkrt_signal, reserved, 44);
MKRT_SIZE(mkrt_signal, 48);

MKRT_OFFSET(mkrt_record, opcode, 0);
MKRT_OFFSET(mkrt_record, index, 4);
MKRT_OFFSET(mkrt_record, first_tile, 8);
MKRT_OFFSET(mkrt_record, tile_count, 16);
MKRT_OFFSET(mkrt_record, grid, 24);
MKRT_OFFSET(mkrt_record, operand_count, 40);
MKRT_OFFSET(mkrt_record, wait_count, 44);
MKRT_OFFSET(mkrt_record, signal_count, 48);
MKRT_OFFSET(mkrt_record, reserved, 52);
MKRT_OFFSET(mkrt_record, parameter, 56);
MKRT_OFFSET(mkrt_record, wait, 120);
MKRT_OFFSET(mkrt_record, signal, 344);
MKRT_OFFSET(mkrt_record, operand, 536);
MKRT_OFFSET(mkrt_record, padding, 1400);
MKRT_SIZE(mkrt_record, 1408);

MKRT_OFFSET(mkrt_image_info, launch_version, 0);
MKRT_OFFSET(mkrt_image_info, launch_size, 4);
MKRT_OFFSET(mkrt_image_info, record_size, 8);
MKRT_OFFSET(mkrt_image_info, block_size, 12);
MKRT_OFFSET(mkrt_image_info, isa_fingerprint, 16);
MKRT_OFFSET(mkrt_image_info, fixed_shared_bytes, 24);
MKRT_OFFSET(mkrt_image_info, page_bytes, 28);
MKRT_OFFSET(mkrt_image_info, minimum_pages, 32);
MKRT_OFFSET(mkrt_image_info, preferred_pages, 36);
MKRT_OFFSET(mkrt_image_info, maximum_pages, 40);
MKRT_OFFSET(mkrt_image_info, maximum_shared_bytes, 44);
MKRT_OFFSET(mkrt_image_info, row_padding, 48);
MKRT_OFFSET(mkrt_image_info, minimum_row_bytes, 52);
MKRT_OFFSET(mkrt_image_info, staged_operands, 56);
MKRT_OFFSET(mkrt_image_info, whole, 312);
MKRT_OFFSET(mkrt_image_info, more_rows, 376);
MKRT_OFFSET(mkrt_image_info, useful_rows, 440);
MKRT_OFFSET(mkrt_image_info, ranked_operands, 504);
MKRT_SIZE(mkrt_image_info, 760);

MKRT_OFFSET(mkrt_report, status, 0);
MKRT_OFFSET(mkrt_report, rank, 4);
MKRT_OFFSET(mkrt_report, sm, 8);
MKRT_OFFSET(mkrt_report, record, 12);
MKRT_OFFSET(mkrt_report, tile, 16);
MKRT_OFFSET(mkrt_report, step, 24);
MKRT_OFFSET(mkrt_report, counter, 32);
MKRT_OFFSET(mkrt_report, value_seen, 36);
MKRT_OFFSET(mkrt_report, value_wanted, 40);
MKRT_OFFSET(mkrt_report, fault, 44);
MKRT_OFFSET(mkrt_report, waited_ns, 48);
MKRT_OFFSET(mkrt_report, timeline_value, 56);
MKRT_SIZE(mkrt_report, 64);

MKRT_OFFSET(mkrt_control, queue, 0);
MKRT_OFFSET(mkrt_control, blocks_done, 8);
MKRT_OFFSET(mkrt_control, abort, 12);
MKRT_OFFSET(mkrt_control, padding, 16);
MKRT_OFFSET(mkrt_control, report, 128);
MKRT_OFFSET(mkrt_control, report_place, 192);
MKRT_OFFSET(mkrt_control, report_lock, 200);
MKRT_OFFSET(mkrt_control, ranks_begun, 204);
MKRT_OFFSET(mkrt_control, ranks_ended, 208);
MKRT_OFFSET(mkrt_control, launches, 212);
MKRT_OFFSET(mkrt_control, padding_after, 216);
MKRT_SIZE(mkrt_control, 256);

MKRT_OFFSET(mkrt_trace_tile, record, 0);
MKRT_OFFSET(mkrt_trace_tile, step, 4);
MKRT_OFFSET(mkrt_trace_tile, tile, 8);
MKRT_OFFSET(mkrt_trace_tile, time, 16);
MKRT_SIZE(mkrt_trace_tile, 128);

MKRT_OFFSET(mkrt_launch, records, 0);
MKRT_OFFSET(mkrt_launch, first_tiles, 8);
MKRT_OFFSET(mkrt_launch, control, 16);
MKRT_OFFSET(mkrt_launch, epoch, 24);
MKRT_OFFSET(mkrt_launch, counters, 32);
MKRT_OFFSET(mkrt_launch, rank_delta, 40);
MKRT_OFFSET(mkrt_launch, report, 48);
MKRT_OFFSET(mkrt_launch, timeline, 56);
MKRT_OFFSET(mkrt_launch, trace, 64);
MKRT_OFFSET(mkrt_launch, rank, 72);
MKRT_OFFSET(mkrt_launch, blocks, 76);
MKRT_OFFSET(mkrt_launch, timeline_value, 80);
MKRT_OFFSET(mkrt_launch, wait_limit_ns, 88);
MKRT_OFFSET(mkrt_launch, local_ranks, 96);
MKRT_OFFSET(mkrt_launch, local_rank_count, 104);
MKRT_OFFSET(mkrt_launch, block_limit, 108);
MKRT_OFFSET(mkrt_launch, record_count, 112);
MKRT_OFFSET(mkrt_launch, step_count, 116);
MKRT_OFFSET(mkrt_launch, queue_mode, 120);
MKRT_OFFSET(mkrt_launch, rank_count, 124);
MKRT_OFFSET(mkrt_launch, page_count, 128);
MKRT_OFFSET(mkrt_launch, activation_bytes, 132);
MKRT_OFFSET(mkrt_launch, outstanding_pages, 136);
MKRT_OFFSET(mkrt_launch, trace_tiles, 140);
MKRT_SIZE(mkrt_launch, 144);

#undef MKRT_OFFSET
#undef MKRT_SIZE

#endif /* MKRT_DEVICE_LAYOUT_H_ */
