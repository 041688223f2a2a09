/* Prints size and fields of every public struct and the value of every public constant, one a line. Compiled as C11 and
 * as C++17; both must print layout.golden. A field that is missing here shows as a gap and fails. */
#include <stdio.h>
#include <stdlib.h>

#include "mkrt/device/launch.h"
#include "mkrt/device/table.h"
#include "mkrt/host_isa.h"
#include "mkrt/mkrt.h"

static size_t end_of_last_field;

static void begin_struct(const char* name, size_t size) {
  printf("struct %s size %zu\n", name, size);
  end_of_last_field = 0;
}

static size_t round_up(size_t value, size_t alignment) { return (value + alignment - 1) / alignment * alignment; }

static void check_place(const char* name, size_t offset, size_t alignment) {
  if (offset == round_up(end_of_last_field, alignment)) return;
  fprintf(stderr, "%s at %zu does not follow the field before it, which ends at %zu\n", name, offset,
          end_of_last_field);
  exit(1);
}

static void field(const char* name, size_t offset, size_t size, size_t alignment) {
  printf("  %s offset %zu size %zu\n", name, offset, size);
  check_place(name, offset, alignment);
  end_of_last_field = offset + size;
}

#ifdef __cplusplus
#define ALIGNMENT_OF(type) alignof(type)
#define FIELD_ALIGNMENT(type, member) alignof(decltype(type::member))
#else
#define ALIGNMENT_OF(type) _Alignof(type)
/* C11 has no alignment of an expression: a field starts where a struct of one byte and its element would put it. */
#define FIELD_ALIGNMENT(type, member) field_alignment(offsetof(type, member), end_of_last_field)
/* The smallest alignment that explains the offset; gaps of more than 7 bytes have none. */
static size_t field_alignment(size_t offset, size_t end) {
  size_t alignment;
  for (alignment = 1; alignment < 8; alignment *= 2) {
    if (round_up(end, alignment) == offset) break;
  }
  return alignment;
}
#endif

#define STRUCT(type) begin_struct(#type, sizeof(type))
#define FIELD(type, member) \
  field(#member, offsetof(type, member), sizeof(((type*)0)->member), FIELD_ALIGNMENT(type, member))
#define END(type) check_place(#type, sizeof(type), ALIGNMENT_OF(type))
#define CONSTANT(name) printf("constant %s %lld\n", #name, (long long)(name))

static void print_structs(void) {
  STRUCT(mkrt_error);
  FIELD(mkrt_error, struct_size);
  FIELD(mkrt_error, status);
  FIELD(mkrt_error, driver_code);
  FIELD(mkrt_error, rank);
  FIELD(mkrt_error, worker);
  FIELD(mkrt_error, record);
  FIELD(mkrt_error, tile);
  FIELD(mkrt_error, step);
  FIELD(mkrt_error, counter);
  FIELD(mkrt_error, value_seen);
  FIELD(mkrt_error, value_wanted);
  FIELD(mkrt_error, reserved);
  FIELD(mkrt_error, message);
  END(mkrt_error);

  STRUCT(mkrt_extension);
  FIELD(mkrt_extension, struct_size);
  FIELD(mkrt_extension, type);
  FIELD(mkrt_extension, next);
  END(mkrt_extension);

  STRUCT(mkrt_runtime_desc);
  FIELD(mkrt_runtime_desc, struct_size);
  FIELD(mkrt_runtime_desc, log_level);
  FIELD(mkrt_runtime_desc, next);
  FIELD(mkrt_runtime_desc, user_data);
  FIELD(mkrt_runtime_desc, allocate);
  FIELD(mkrt_runtime_desc, release);
  FIELD(mkrt_runtime_desc, log);
  END(mkrt_runtime_desc);

  STRUCT(mkrt_device_info);
  FIELD(mkrt_device_info, struct_size);
  FIELD(mkrt_device_info, kind);
  FIELD(mkrt_device_info, ordinal);
  FIELD(mkrt_device_info, worker_count);
  FIELD(mkrt_device_info, memory_bytes);
  FIELD(mkrt_device_info, memory_free);
  FIELD(mkrt_device_info, uuid);
  FIELD(mkrt_device_info, compute_major);
  FIELD(mkrt_device_info, compute_minor);
  FIELD(mkrt_device_info, name);
  FIELD(mkrt_device_info, target);
  END(mkrt_device_info);

  STRUCT(mkrt_rank_desc);
  FIELD(mkrt_rank_desc, struct_size);
  FIELD(mkrt_rank_desc, kind);
  FIELD(mkrt_rank_desc, ordinal);
  FIELD(mkrt_rank_desc, worker_count);
  FIELD(mkrt_rank_desc, uuid);
  FIELD(mkrt_rank_desc, context);
  FIELD(mkrt_rank_desc, stream);
  END(mkrt_rank_desc);

  STRUCT(mkrt_mesh_desc);
  FIELD(mkrt_mesh_desc, struct_size);
  FIELD(mkrt_mesh_desc, rank_count);
  FIELD(mkrt_mesh_desc, next);
  FIELD(mkrt_mesh_desc, ranks);
  END(mkrt_mesh_desc);

  STRUCT(mkrt_device_memory_extension);
  FIELD(mkrt_device_memory_extension, base);
  FIELD(mkrt_device_memory_extension, user_data);
  FIELD(mkrt_device_memory_extension, allocate);
  FIELD(mkrt_device_memory_extension, release);
  END(mkrt_device_memory_extension);

  STRUCT(mkrt_process_extension);
  FIELD(mkrt_process_extension, base);
  FIELD(mkrt_process_extension, process);
  FIELD(mkrt_process_extension, process_count);
  FIELD(mkrt_process_extension, timeout_ns);
  FIELD(mkrt_process_extension, user_data);
  FIELD(mkrt_process_extension, all_gather);
  END(mkrt_process_extension);

  STRUCT(mkrt_exchange_desc);
  FIELD(mkrt_exchange_desc, struct_size);
  FIELD(mkrt_exchange_desc, process);
  FIELD(mkrt_exchange_desc, process_count);
  FIELD(mkrt_exchange_desc, reserved);
  FIELD(mkrt_exchange_desc, next);
  FIELD(mkrt_exchange_desc, address);
  FIELD(mkrt_exchange_desc, timeout_ns);
  END(mkrt_exchange_desc);

  STRUCT(mkrt_program_desc);
  FIELD(mkrt_program_desc, struct_size);
  FIELD(mkrt_program_desc, reserved);
  FIELD(mkrt_program_desc, next);
  FIELD(mkrt_program_desc, path);
  END(mkrt_program_desc);

  STRUCT(mkrt_program_info);
  FIELD(mkrt_program_info, struct_size);
  FIELD(mkrt_program_info, rank_count);
  FIELD(mkrt_program_info, entry_count);
  FIELD(mkrt_program_info, tensor_count);
  FIELD(mkrt_program_info, weight_bytes);
  FIELD(mkrt_program_info, session_bytes);
  FIELD(mkrt_program_info, isa_fingerprint);
  FIELD(mkrt_program_info, isa_name);
  END(mkrt_program_info);

  STRUCT(mkrt_entry_info);
  FIELD(mkrt_entry_info, struct_size);
  FIELD(mkrt_entry_info, record_count);
  FIELD(mkrt_entry_info, counter_count);
  FIELD(mkrt_entry_info, reserved);
  FIELD(mkrt_entry_info, tile_count);
  FIELD(mkrt_entry_info, name);
  END(mkrt_entry_info);

  STRUCT(mkrt_record_info);
  FIELD(mkrt_record_info, struct_size);
  FIELD(mkrt_record_info, wait_count);
  FIELD(mkrt_record_info, signal_count);
  FIELD(mkrt_record_info, grid);
  FIELD(mkrt_record_info, reserved);
  FIELD(mkrt_record_info, tile_count);
  FIELD(mkrt_record_info, bytes_read);
  FIELD(mkrt_record_info, opcode);
  FIELD(mkrt_record_info, label);
  END(mkrt_record_info);

  STRUCT(mkrt_tensor_info);
  FIELD(mkrt_tensor_info, struct_size);
  FIELD(mkrt_tensor_info, dtype);
  FIELD(mkrt_tensor_info, kind);
  FIELD(mkrt_tensor_info, dimension_count);
  FIELD(mkrt_tensor_info, shape);
  FIELD(mkrt_tensor_info, size_bytes);
  FIELD(mkrt_tensor_info, name);
  END(mkrt_tensor_info);

  STRUCT(mkrt_executable_desc);
  FIELD(mkrt_executable_desc, struct_size);
  FIELD(mkrt_executable_desc, loader_threads);
  FIELD(mkrt_executable_desc, next);
  FIELD(mkrt_executable_desc, memory_budget);
  END(mkrt_executable_desc);

  STRUCT(mkrt_execute_desc);
  FIELD(mkrt_execute_desc, struct_size);
  FIELD(mkrt_execute_desc, entry);
  FIELD(mkrt_execute_desc, step_count);
  FIELD(mkrt_execute_desc, queue_mode);
  FIELD(mkrt_execute_desc, worker_limit);
  FIELD(mkrt_execute_desc, reserved);
  FIELD(mkrt_execute_desc, next);
  FIELD(mkrt_execute_desc, wait_limit_ns);
  END(mkrt_execute_desc);

  STRUCT(mkrt_trace_tile);
  FIELD(mkrt_trace_tile, record);
  FIELD(mkrt_trace_tile, step);
  FIELD(mkrt_trace_tile, tile);
  FIELD(mkrt_trace_tile, time);
  END(mkrt_trace_tile);

  STRUCT(mkrt_host_tile);
  FIELD(mkrt_host_tile, record);
  FIELD(mkrt_host_tile, index);
  FIELD(mkrt_host_tile, rank);
  FIELD(mkrt_host_tile, rank_count);
  FIELD(mkrt_host_tile, step);
  FIELD(mkrt_host_tile, rank_delta);
  FIELD(mkrt_host_tile, scratch);
  FIELD(mkrt_host_tile, scratch_size);
  FIELD(mkrt_host_tile, execute_serial);
  END(mkrt_host_tile);

  STRUCT(mkrt_host_isa);
  FIELD(mkrt_host_isa, struct_size);
  FIELD(mkrt_host_isa, opcode_count);
  FIELD(mkrt_host_isa, fingerprint);
  FIELD(mkrt_host_isa, name);
  FIELD(mkrt_host_isa, instructions);
  FIELD(mkrt_host_isa, scratch_size);
  END(mkrt_host_isa);

  STRUCT(mkrt_host_isa_extension);
  FIELD(mkrt_host_isa_extension, base);
  FIELD(mkrt_host_isa_extension, isa_count);
  FIELD(mkrt_host_isa_extension, reserved);
  FIELD(mkrt_host_isa_extension, isas);
  END(mkrt_host_isa_extension);

  STRUCT(mkrt_rank_selector);
  FIELD(mkrt_rank_selector, mode);
  FIELD(mkrt_rank_selector, dimension);
  FIELD(mkrt_rank_selector, offset);
  END(mkrt_rank_selector);

  STRUCT(mkrt_operand);
  FIELD(mkrt_operand, address);
  FIELD(mkrt_operand, stride);
  FIELD(mkrt_operand, size);
  FIELD(mkrt_operand, limit);
  FIELD(mkrt_operand, row_stride);
  FIELD(mkrt_operand, rows);
  FIELD(mkrt_operand, rank);
  END(mkrt_operand);

  STRUCT(mkrt_wait);
  FIELD(mkrt_wait, first);
  FIELD(mkrt_wait, count);
  FIELD(mkrt_wait, stride);
  FIELD(mkrt_wait, divide);
  FIELD(mkrt_wait, value);
  FIELD(mkrt_wait, step_total);
  FIELD(mkrt_wait, step_offset);
  FIELD(mkrt_wait, across_ranks);
  END(mkrt_wait);

  STRUCT(mkrt_signal);
  FIELD(mkrt_signal, first);
  FIELD(mkrt_signal, stride);
  FIELD(mkrt_signal, divide);
  FIELD(mkrt_signal, rank);
  FIELD(mkrt_signal, across_ranks);
  FIELD(mkrt_signal, reserved);
  END(mkrt_signal);

  STRUCT(mkrt_record);
  FIELD(mkrt_record, opcode);
  FIELD(mkrt_record, index);
  FIELD(mkrt_record, first_tile);
  FIELD(mkrt_record, tile_count);
  FIELD(mkrt_record, grid);
  FIELD(mkrt_record, operand_count);
  FIELD(mkrt_record, wait_count);
  FIELD(mkrt_record, signal_count);
  FIELD(mkrt_record, reserved);
  FIELD(mkrt_record, parameter);
  FIELD(mkrt_record, wait);
  FIELD(mkrt_record, signal);
  FIELD(mkrt_record, operand);
  FIELD(mkrt_record, padding);
  END(mkrt_record);

  STRUCT(mkrt_image_info);
  FIELD(mkrt_image_info, launch_version);
  FIELD(mkrt_image_info, launch_size);
  FIELD(mkrt_image_info, record_size);
  FIELD(mkrt_image_info, block_size);
  FIELD(mkrt_image_info, isa_fingerprint);
  FIELD(mkrt_image_info, fixed_shared_bytes);
  FIELD(mkrt_image_info, page_bytes);
  FIELD(mkrt_image_info, minimum_pages);
  FIELD(mkrt_image_info, preferred_pages);
  FIELD(mkrt_image_info, maximum_pages);
  FIELD(mkrt_image_info, maximum_shared_bytes);
  FIELD(mkrt_image_info, row_padding);
  FIELD(mkrt_image_info, minimum_row_bytes);
  FIELD(mkrt_image_info, staged_operands);
  FIELD(mkrt_image_info, whole);
  FIELD(mkrt_image_info, more_rows);
  FIELD(mkrt_image_info, useful_rows);
  END(mkrt_image_info);

  STRUCT(mkrt_report);
  FIELD(mkrt_report, status);
  FIELD(mkrt_report, rank);
  FIELD(mkrt_report, sm);
  FIELD(mkrt_report, record);
  FIELD(mkrt_report, tile);
  FIELD(mkrt_report, step);
  FIELD(mkrt_report, counter);
  FIELD(mkrt_report, value_seen);
  FIELD(mkrt_report, value_wanted);
  FIELD(mkrt_report, fault);
  FIELD(mkrt_report, waited_ns);
  FIELD(mkrt_report, timeline_value);
  END(mkrt_report);

  STRUCT(mkrt_control);
  FIELD(mkrt_control, queue);
  FIELD(mkrt_control, blocks_done);
  FIELD(mkrt_control, abort);
  FIELD(mkrt_control, padding);
  FIELD(mkrt_control, report);
  FIELD(mkrt_control, report_place);
  FIELD(mkrt_control, report_lock);
  FIELD(mkrt_control, ranks_begun);
  FIELD(mkrt_control, ranks_ended);
  FIELD(mkrt_control, launches);
  FIELD(mkrt_control, padding_after);
  END(mkrt_control);

  STRUCT(mkrt_launch);
  FIELD(mkrt_launch, records);
  FIELD(mkrt_launch, first_tiles);
  FIELD(mkrt_launch, control);
  FIELD(mkrt_launch, epoch);
  FIELD(mkrt_launch, counters);
  FIELD(mkrt_launch, rank_delta);
  FIELD(mkrt_launch, report);
  FIELD(mkrt_launch, timeline);
  FIELD(mkrt_launch, trace);
  FIELD(mkrt_launch, rank);
  FIELD(mkrt_launch, blocks);
  FIELD(mkrt_launch, timeline_value);
  FIELD(mkrt_launch, wait_limit_ns);
  FIELD(mkrt_launch, local_ranks);
  FIELD(mkrt_launch, local_rank_count);
  FIELD(mkrt_launch, block_limit);
  FIELD(mkrt_launch, record_count);
  FIELD(mkrt_launch, step_count);
  FIELD(mkrt_launch, queue_mode);
  FIELD(mkrt_launch, rank_count);
  FIELD(mkrt_launch, page_count);
  FIELD(mkrt_launch, activation_bytes);
  FIELD(mkrt_launch, outstanding_pages);
  FIELD(mkrt_launch, trace_tiles);
  END(mkrt_launch);
}

static void print_constants(void) {
  CONSTANT(MKRT_OK);
  CONSTANT(MKRT_ERROR_ARGUMENT);
  CONSTANT(MKRT_ERROR_STRUCT_SIZE);
  CONSTANT(MKRT_ERROR_EXTENSION);
  CONSTANT(MKRT_ERROR_HANDLE);
  CONSTANT(MKRT_ERROR_NOT_FOUND);
  CONSTANT(MKRT_ERROR_OUT_OF_MEMORY);
  CONSTANT(MKRT_ERROR_FILE);
  CONSTANT(MKRT_ERROR_FORMAT);
  CONSTANT(MKRT_ERROR_UNSUPPORTED);
  CONSTANT(MKRT_ERROR_SCHEDULE);
  CONSTANT(MKRT_ERROR_DEVICE);
  CONSTANT(MKRT_ERROR_BUSY);
  CONSTANT(MKRT_ERROR_TIMEOUT);
  CONSTANT(MKRT_ERROR_DEADLINE);
  CONSTANT(MKRT_ERROR_CANCELLED);
  CONSTANT(MKRT_ERROR_FAULT);
  CONSTANT(MKRT_ERROR_SESSION_FAILED);
  CONSTANT(MKRT_ERROR_DRIVER);
  CONSTANT(MKRT_ERROR_PEER);
  CONSTANT(MKRT_ERROR_INTERNAL);
  CONSTANT(MKRT_EXTENSION_HOST_ISA);
  CONSTANT(MKRT_EXTENSION_DEVICE_MEMORY);
  CONSTANT(MKRT_EXTENSION_PROCESSES);
  CONSTANT(MKRT_LOG_ERROR);
  CONSTANT(MKRT_LOG_WARNING);
  CONSTANT(MKRT_LOG_INFO);
  CONSTANT(MKRT_LOG_DEBUG);
  CONSTANT(MKRT_DEVICE_DEFAULT);
  CONSTANT(MKRT_DEVICE_HOST);
  CONSTANT(MKRT_DEVICE_CUDA);
  CONSTANT(MKRT_DTYPE_F32);
  CONSTANT(MKRT_DTYPE_F16);
  CONSTANT(MKRT_DTYPE_BF16);
  CONSTANT(MKRT_DTYPE_I32);
  CONSTANT(MKRT_DTYPE_U32);
  CONSTANT(MKRT_DTYPE_U8);
  CONSTANT(MKRT_TENSOR_WEIGHT);
  CONSTANT(MKRT_TENSOR_STATE);
  CONSTANT(MKRT_TENSOR_INPUT);
  CONSTANT(MKRT_TENSOR_OUTPUT);
  CONSTANT(MKRT_TENSOR_SCRATCH);
  CONSTANT(MKRT_QUEUE_DYNAMIC);
  CONSTANT(MKRT_QUEUE_STATIC);
  CONSTANT(MKRT_MAX_RANKS);
  CONSTANT(MKRT_MAX_HOST_WORKERS);
  CONSTANT(MKRT_MAX_EXCHANGE_BYTES);
  CONSTANT(MKRT_MAX_DIMENSIONS);
  CONSTANT(MKRT_MAX_LOADER_THREADS);
  CONSTANT(MKRT_TRACE_FETCHED);
  CONSTANT(MKRT_TRACE_WEIGHTS_BEGIN);
  CONSTANT(MKRT_TRACE_WEIGHTS_END);
  CONSTANT(MKRT_TRACE_WAIT_BEGIN);
  CONSTANT(MKRT_TRACE_WAIT_END);
  CONSTANT(MKRT_TRACE_INPUTS);
  CONSTANT(MKRT_TRACE_PREPARED);
  CONSTANT(MKRT_TRACE_CONSUMED);
  CONSTANT(MKRT_TRACE_STORE_BEGIN);
  CONSTANT(MKRT_TRACE_STORE_END);
  CONSTANT(MKRT_TRACE_SIGNALLED);
  CONSTANT(MKRT_TRACE_DRAINED);
  CONSTANT(MKRT_TRACE_STALL_BEGIN);
  CONSTANT(MKRT_TRACE_STALL_END);
  CONSTANT(MKRT_TRACE_EVENTS);
  CONSTANT(MKRT_TILE_DIMENSIONS);
  CONSTANT(MKRT_RECORD_OPERANDS);
  CONSTANT(MKRT_RECORD_PARAMETERS);
  CONSTANT(MKRT_RECORD_WAITS);
  CONSTANT(MKRT_RECORD_SIGNALS);
  CONSTANT(MKRT_COUNTER_STRIDE);
  CONSTANT(MKRT_RANK_SELF);
  CONSTANT(MKRT_RANK_ALL);
  CONSTANT(MKRT_RANK_FIXED);
  CONSTANT(MKRT_RANK_RELATIVE);
  CONSTANT(MKRT_LAUNCH_VERSION);
  CONSTANT(MKRT_IMAGE_OPCODES);
  CONSTANT(MKRT_REPORT_LEFT);
  CONSTANT(MKRT_REPORT_BEGIN);
  CONSTANT(MKRT_REPORT_END);
  CONSTANT(MKRT_LAUNCH_RECORDS);
}

int main(void) {
  print_structs();
  print_constants();
  return 0;
}
