#include "package/writer.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <ostream>
#include <system_error>
#include <utility>

#include "base/checked.hpp"
#include "base/failure.hpp"
#include "base/path.hpp"
#include "package/isa.hpp"
#include "package/json.hpp"
#include "package/safetensors.hpp"

namespace mkrt::package {

namespace {

using base::system_path;
using base::text;

[[noreturn]] void fail(const std::string& path, const char* action, std::error_code error) {
  throw base::Failure(MKRT_ERROR_FILE, text(base::shown_path(path), ": cannot be ", action, ": ", error.message()))
      .with_driver_code(error.value());
}

std::error_code last_error() { return {errno != 0 ? errno : EIO, std::generic_category()}; }

std::ofstream open_file(const std::string& path) {
  errno = 0;
  std::ofstream out(system_path(path), std::ios::binary | std::ios::trunc);
  if (!out) fail(path, "created", last_error());
  out.imbue(std::locale::classic());
  return out;
}

// Closes `stream`, which wrote `partial_path`, and gives the file its name.
void close_file(std::ofstream& stream, const std::string& partial_path, const std::string& path) {
  errno = 0;
  stream.close();
  if (!stream) fail(path, "written", last_error());
  std::error_code error;
  std::filesystem::rename(system_path(partial_path), system_path(path), error);
  if (error) fail(path, "created", error);
}

void remove_file(const std::string& path) noexcept {
  std::error_code error;
  std::filesystem::remove(system_path(path), error);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

std::string json_string(std::string_view value) { return Json(value).dump(); }

std::string_view json_access(Access access) {
  switch (access) {
    case Access::read: return "read";
    case Access::write: return "write";
    case Access::read_write: return "read_write";
    case Access::append: return "append";
    case Access::gather: return "gather";
  }
  return "?";
}

std::string_view json_type(ParameterType type) {
  switch (type) {
    case ParameterType::u32: return "u32";
    case ParameterType::i32: return "i32";
    case ParameterType::f32: return "f32";
  }
  return "?";
}

std::string_view json_kind(uint32_t kind) {
  switch (kind) {
    case MKRT_TENSOR_WEIGHT: return "weight";
    case MKRT_TENSOR_STATE: return "state";
    case MKRT_TENSOR_INPUT: return "input";
    case MKRT_TENSOR_OUTPUT: return "output";
    default: return "scratch";
  }
}

// The shortest text that reads back as the same float.
std::string json_float(float value) {
  assert(std::isfinite(value));
  std::array<char, 32> out;
  const auto result = std::to_chars(out.data(), out.data() + out.size(), value);
  return std::string(out.data(), result.ptr);
}

std::string json_parameter(uint32_t bits, ParameterType type) {
  switch (type) {
    case ParameterType::u32: return std::to_string(bits);
    case ParameterType::i32: return std::to_string(static_cast<int32_t>(bits));
    case ParameterType::f32: break;
  }
  return json_float(std::bit_cast<float>(bits));
}

// The first `count` elements of `range`, each through `element`, between brackets.
template <class Range, class Function>
std::string json_array(const Range& range, size_t count, Function element) {
  std::string out = "[";
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out += ", ";
    out += element(range[i]);
  }
  return out += ']';
}

template <class Range>
std::string json_numbers(const Range& range, size_t count) {
  return json_array(range, count, [](auto value) { return std::to_string(value); });
}

template <class Number>
bool all_equal(const std::array<Number, MKRT_TILE_DIMENSIONS>& values, Number value) {
  return std::all_of(values.begin(), values.end(), [&](Number other) { return other == value; });
}

std::string json_rank(const mkrt_rank_selector& rank) {
  switch (rank.mode) {
    case MKRT_RANK_ALL: return "\"all\"";
    case MKRT_RANK_FIXED: return std::to_string(rank.offset);
    case MKRT_RANK_RELATIVE: break;
    default: return "\"self\"";
  }
  if (rank.dimension == 0xff) return text("{\"offset\": ", rank.offset, "}");
  return text("{\"offset\": ", rank.offset, ", \"dimension\": ", uint32_t{rank.dimension}, "}");
}

std::string json_operand(const Operand& operand, const Record& record, const std::vector<Tensor>& tensors) {
  const Tensor& tensor = tensors[operand.tensor];
  uint64_t natural_limit = operand.size;  // what the reader takes where the file gives none
  for (uint32_t d = 0; d < MKRT_TILE_DIMENSIONS; ++d) natural_limit += operand.strides[d] * (record.grid[d] - 1);
  std::string out;
  if (operand.offset != 0) out += text(", \"offset\": ", operand.offset);
  if (operand.rank_stride != 0) out += text(", \"rank_stride\": ", operand.rank_stride);
  if (operand.size != tensor.elements) out += text(", \"size\": ", operand.size);
  if (operand.rows != 1) out += text(", \"rows\": ", operand.rows);
  if (operand.rows != 1 || operand.row_stride != 0) out += text(", \"row_stride\": ", operand.row_stride);
  if (!all_equal(operand.strides, uint64_t{0})) {
    out += ", \"strides\": " + json_numbers(operand.strides, record.dimensions);
  }
  if (operand.limit != natural_limit) out += text(", \"limit\": ", operand.limit);
  if (operand.rank.mode != MKRT_RANK_SELF) out += ", \"rank\": " + json_rank(operand.rank);
  if (out.empty()) return json_string(tensor.name);
  return "{\"tensor\": " + json_string(tensor.name) + out + "}";
}

// What waits and signals share, without the closing brace.
template <class Reference>
std::string json_counters(const Reference& reference, const Record& record, const Entry& entry) {
  const CounterArray& array = entry.counters[reference.array];
  std::string out = "{\"counter\": " + json_string(array.name);
  if (reference.counter != array.first) out += text(", \"offset\": ", reference.counter - array.first);
  if (!all_equal(reference.strides, 0u)) out += ", \"strides\": " + json_numbers(reference.strides, record.dimensions);
  if (!all_equal(reference.divide, 1u)) out += ", \"divide\": " + json_numbers(reference.divide, record.dimensions);
  return out;
}

std::string json_wait(const Wait& wait, const Record& record, const Entry& entry) {
  std::string out = json_counters(wait, record, entry);
  if (wait.count != 1) out += text(", \"count\": ", wait.count);
  if (wait.value != 0) out += text(", \"value\": ", wait.value);
  if (wait.step_offset != 0) out += text(", \"step\": ", wait.step_offset);
  return out + "}";
}

std::string json_signal(const Signal& signal, const Record& record, const Entry& entry) {
  std::string out = json_counters(signal, record, entry);
  if (signal.rank.mode != MKRT_RANK_SELF) out += ", \"rank\": " + json_rank(signal.rank);
  return out + "}";
}

std::string json_record(const Record& record, const Entry& entry, const Program& program) {
  const OpcodeDefinition& opcode = program.isa.opcodes[record.opcode];
  std::string out = "{";
  if (!record.label.empty()) out += "\"label\": " + json_string(record.label) + ", ";
  out += "\"op\": " + json_string(opcode.name) + ", \"tiles\": " + json_numbers(record.grid, record.dimensions);
  for (size_t i = 0; i < opcode.parameters.size(); ++i) {
    out += i == 0 ? ", \"parameters\": {" : ", ";
    out +=
        json_string(opcode.parameters[i].name) + ": " + json_parameter(record.parameters[i], opcode.parameters[i].type);
  }
  out += opcode.parameters.empty() ? ", \"operands\": {" : "}, \"operands\": {";
  bool first = true;
  for (size_t i = 0; i < opcode.operands.size(); ++i) {
    if (!record.operands[i]) continue;
    if (!std::exchange(first, false)) out += ", ";
    out += json_string(opcode.operands[i].name) + ": " + json_operand(*record.operands[i], record, program.tensors);
  }
  out += '}';
  if (!record.waits.empty()) {
    out += ", \"wait\": " + json_array(record.waits, record.waits.size(),
                                       [&](const Wait& wait) { return json_wait(wait, record, entry); });
  }
  if (!record.signals.empty()) {
    out += ", \"signal\": " + json_array(record.signals, record.signals.size(),
                                         [&](const Signal& signal) { return json_signal(signal, record, entry); });
  }
  return out + "}";
}

std::string json_operand_definition(const OperandDefinition& operand) {
  std::string out =
      "{\"name\": " + json_string(operand.name) + ", \"access\": \"" + std::string(json_access(operand.access)) +
      "\", \"dtypes\": " +
      json_array(operand.dtypes, operand.dtypes.size(), [](Dtype dtype) { return json_string(dtype_name(dtype)); });
  if (operand.optional) out += ", \"optional\": true";
  if (operand.access == Access::append) {
    out += ", \"shared_dimensions\": " + json_numbers(operand.shared_dimensions, operand.shared_dimensions.size());
  }
  if (operand.whole) out += ", \"whole\": true";
  if (operand.constant) out += ", \"constant\": true";
  return out + "}";
}

/* ---- program.json ----------------------------------------------------------------------------------------------- */

// Writes nested arrays with one element a line.
class ProgramWriter {
 public:
  explicit ProgramWriter(std::ostream& out) : out_(out) {}

  void write(const Program& program, const ProgramFiles& files) {
    out_ << "{\n\"format\": \"mkrt.program\",\n\"version\": 1,\n\"ranks\": " << program.rank_count << ",\n\"isa\": ";
    write_isa(program.isa);
    out_ << ",\n\"images\": ";
    write_lines(program.images, " ", [&](const Image& image) {
      out_ << "{\"target\": " << json_string(image.target) << ", \"file\": " << json_string(image.file) << "}";
    });
    out_ << ",\n\"metadata\": {";
    for (size_t i = 0; i < program.metadata.size(); ++i) {
      out_ << (i == 0 ? "\n " : ",\n ") << json_string(program.metadata[i].key) << ": "
           << json_string(program.metadata[i].value);
    }
    out_ << (program.metadata.empty() ? "}" : "\n}") << ",\n\"weights\": ";
    write_lines(files.weights, " ", [&](const std::string& file) { out_ << json_string(file); });
    out_ << ",\n\"tensors\": ";
    write_tensors(program.tensors, files.sources);
    out_ << ",\n\"entries\": ";
    write_lines(program.entries, " ", [&](const Entry& entry) { write_entry(entry, program); });
    out_ << "\n}\n";
  }

 private:
  template <class Range, class Function>
  void write_lines(const Range& range, const char* indent, Function write_element) {
    out_ << '[';
    bool first = true;
    for (const auto& element : range) {
      out_ << (std::exchange(first, false) ? "\n" : ",\n") << indent;
      write_element(element);
    }
    if (!first) out_ << '\n' << std::string_view(indent).substr(1);
    out_ << ']';
  }

  void write_isa(const IsaDefinition& isa) {
    out_ << "{\"name\": " << json_string(isa.name) << ", \"version\": " << isa.version << ", \"opcodes\": ";
    write_lines(isa.opcodes, " ", [&](const OpcodeDefinition& opcode) {
      out_ << "{\"name\": " << json_string(opcode.name) << ",\n  \"operands\": ";
      write_lines(opcode.operands, "   ", [&](const auto& operand) { out_ << json_operand_definition(operand); });
      out_ << ",\n  \"parameters\": "
           << json_array(opcode.parameters, opcode.parameters.size(),
                         [](const ParameterDefinition& parameter) {
                           return text("{\"name\": ", json_string(parameter.name), ", \"type\": \"",
                                       json_type(parameter.type), "\"}");
                         })
           << ",\n  \"constraints\": "
           << json_array(opcode.constraints, opcode.constraints.size(),
                         [](const Constraint& constraint) { return json_string(constraint.text); })
           << ",\n  \"faults\": " << json_array(opcode.faults, opcode.faults.size(), json_string) << "}";
    });
    out_ << '}';
  }

  void write_tensors(const std::vector<Tensor>& tensors, const std::vector<std::string>& sources) {
    size_t weight = 0;
    write_lines(tensors, " ", [&](const Tensor& tensor) {
      out_ << "{\"name\": " << json_string(tensor.name) << ", \"dtype\": \"" << dtype_name(tensor.dtype)
           << "\", \"shape\": " << json_numbers(tensor.shape, tensor.shape.size()) << ", \"kind\": \""
           << json_kind(tensor.kind) << '"';
      if (tensor.kind == MKRT_TENSOR_WEIGHT) {
        assert(sources.empty() || weight < sources.size());
        out_ << ", \"source\": " << json_string(sources.empty() ? tensor.name : sources[weight++]);
      }
      out_ << '}';
    });
  }

  void write_entry(const Entry& entry, const Program& program) {
    out_ << "{\"name\": " << json_string(entry.name) << ",\n  \"counters\": ";
    write_lines(entry.counters, "   ", [&](const CounterArray& array) {
      out_ << "{\"name\": " << json_string(array.name) << ", \"size\": " << array.size << '}';
    });
    out_ << ",\n  \"records\": ";
    write_lines(entry.records, "   ", [&](const Record& record) { out_ << json_record(record, entry, program); });
    out_ << '}';
  }

  std::ostream& out_;
};

/* ---- safetensors ------------------------------------------------------------------------------------------------ */

constexpr uint64_t data_alignment = 64;  // a cache line; the widest vector load of any host
constexpr uint64_t length_bytes = 8;

uint64_t tensor_bytes(const SafetensorsWriter::TensorSpec& tensor) {
  uint64_t size = dtype_size(tensor.dtype);
  for (const uint64_t dimension : tensor.shape) {
    if (!base::checked_multiply(size, dimension)) {
      throw base::Failure(MKRT_ERROR_ARGUMENT, text("tensor ", base::quoted(tensor.name), " is too large"));
    }
  }
  return size;
}

// The header, padded with spaces so that the data starts aligned; adds the tensors' bytes to `total`.
std::string safetensors_header(const std::vector<SafetensorsWriter::TensorSpec>& tensors, uint64_t& total) {
  std::string out = "{";
  for (const SafetensorsWriter::TensorSpec& tensor : tensors) {
    const uint64_t begin = total;
    if (!base::checked_add(total, tensor_bytes(tensor))) {
      throw base::Failure(MKRT_ERROR_ARGUMENT, "the weights are too large");
    }
    if (out.size() > 1) out += ",";
    out += text(json_string(tensor.name), ":{\"dtype\":\"", safetensors_dtype(tensor.dtype),
                "\",\"shape\":", json_numbers(tensor.shape, tensor.shape.size()), ",\"data_offsets\":[", begin, ",",
                total, "]}");
  }
  out += '}';
  const uint64_t size = length_bytes + out.size();
  out.append((size + data_alignment - 1) / data_alignment * data_alignment - size, ' ');
  return out;
}

}  // namespace

void write_program(const Program& program, const ProgramFiles& files, const std::string& path) {
  const std::string partial_path = path + ".partial";
  try {
    std::ofstream stream = open_file(partial_path);
    ProgramWriter(stream).write(program, files);
    close_file(stream, partial_path, path);
  } catch (...) {
    remove_file(partial_path);
    throw;
  }
}

SafetensorsWriter::SafetensorsWriter(std::string path, const std::vector<TensorSpec>& tensors, Progress progress)
    : path_(std::move(path)), partial_path_(path_ + ".partial"), progress_(std::move(progress)) {
  const std::string header = safetensors_header(tensors, total_);
  std::array<char, length_bytes> length;
  for (size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  stream_ = open_file(partial_path_);
  stream_.write(length.data(), length.size());
  stream_.write(header.data(), static_cast<std::streamsize>(header.size()));
}

SafetensorsWriter::~SafetensorsWriter() {
  if (finished_) return;
  stream_.close();
  remove_file(partial_path_);
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  if (bytes.size() > remaining()) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, text(base::shown_path(path_), ": more bytes than its header states"));
  }
  errno = 0;
  stream_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!stream_) fail(path_, "written", last_error());
  done_ += bytes.size();
  if (progress_) progress_(done_, total_);
}

void SafetensorsWriter::finish() {
  if (remaining() > 0) {
    throw base::Failure(MKRT_ERROR_ARGUMENT, text(base::shown_path(path_), ": lacks ", remaining(), " bytes of data"));
  }
  close_file(stream_, partial_path_, path_);
  finished_ = true;
}

}  // namespace mkrt::package
