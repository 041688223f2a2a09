#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/format.hpp"
#include "cli/output.hpp"

namespace mkrt::cli {
namespace {

using nlohmann::ordered_json;

// What mkrt compile writes; packages of others need not have any of it.
constexpr const char* kMetadataKeys[] = {"model_type",    "architecture", "parameters", "vocabulary",
                                         "context",       "batch",        "layers",     "hidden",
                                         "heads",         "kv_heads",     "head_size",  "feed_forward",
                                         "max_positions", "bos_token",    "eos_tokens", "tied_embeddings"};

std::vector<std::pair<std::string, std::string>> read_metadata(const Program& program) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const char* key : kMetadataKeys) {
    try {
      out.emplace_back(key, program.metadata(key));
    } catch (const mkrt::Error& error) {
      if (error.status() != MKRT_ERROR_NOT_FOUND) throw;
    }
  }
  return out;
}

// Dimensions that a record does not have are 1 in the description, and lie at the end.
std::vector<uint32_t> grid_of(const RecordInfo& record) {
  std::vector<uint32_t> grid(record.grid, record.grid + 4);
  while (grid.size() > 1 && grid.back() <= 1) grid.pop_back();
  return grid;
}

// "[8, 16]".
template <class Numbers>
std::string brackets(const Numbers& numbers) {
  std::string out;
  for (const auto number : numbers) {
    out += out.empty() ? "[" : ", ";
    out += std::to_string(number);
  }
  return out + "]";
}

std::string hexadecimal(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

ordered_json entry_to_json(const Program& program, uint32_t index) {
  const EntryInfo entry = program.entry_info(index);
  ordered_json out;
  out["name"] = entry.name;
  out["tiles"] = entry.tile_count;
  out["counters"] = entry.counter_count;
  out["records"] = ordered_json::array();
  for (uint32_t i = 0; i < entry.record_count; ++i) {
    const RecordInfo record = program.record_info(index, i);
    ordered_json& row = out["records"].emplace_back();
    row["label"] = record.label;
    row["op"] = record.opcode;
    row["grid"] = grid_of(record);
    row["tiles"] = record.tile_count;
    row["waits"] = record.wait_count;
    row["signals"] = record.signal_count;
    row["weight_bytes_read"] = record.bytes_read;
  }
  return out;
}

ordered_json to_json(const Program& program) {
  const ProgramInfo info = program.info();
  ordered_json out;
  out["isa"] = info.isa_name;
  out["isa_fingerprint"] = hexadecimal(info.isa_fingerprint);
  out["ranks"] = info.rank_count;
  out["weight_bytes"] = info.weight_bytes;
  out["session_bytes"] = info.session_bytes;
  out["metadata"] = ordered_json::object();
  for (const auto& [key, value] : read_metadata(program)) out["metadata"][key] = value;
  out["entries"] = ordered_json::array();
  for (uint32_t i = 0; i < info.entry_count; ++i) out["entries"].push_back(entry_to_json(program, i));
  out["tensors"] = ordered_json::array();
  for (uint32_t i = 0; i < info.tensor_count; ++i) {
    const TensorInfo tensor = program.tensor_info(i);
    ordered_json& row = out["tensors"].emplace_back();
    row["name"] = tensor.name;
    row["kind"] = tensor_kind_name(tensor.kind);
    row["dtype"] = dtype_name(tensor.dtype);
    row["shape"] = std::vector<uint64_t>(tensor.dimensions().begin(), tensor.dimensions().end());
    row["size_bytes"] = tensor.size_bytes;
  }
  return out;
}

std::string entry_to_text(const Program& program, uint32_t index) {
  const EntryInfo entry = program.entry_info(index);
  std::vector<std::vector<std::string>> table = {
      {"record", "label", "instruction", "grid", "tiles", "waits", "signals", "weights read"}};
  for (uint32_t i = 0; i < entry.record_count; ++i) {
    const RecordInfo record = program.record_info(index, i);
    table.push_back({std::to_string(i), std::string(record.label), std::string(record.opcode),
                     brackets(grid_of(record)), std::to_string(record.tile_count), std::to_string(record.wait_count),
                     std::to_string(record.signal_count), format_bytes(record.bytes_read)});
  }
  return "\nentry " + std::string(entry.name) + ": " + std::to_string(entry.record_count) + " records, " +
         std::to_string(entry.tile_count) + " tiles a step, " + std::to_string(entry.counter_count) + " counters\n" +
         format_table(table);
}

std::string to_text(const Program& program) {
  const ProgramInfo info = program.info();
  std::vector<std::vector<std::string>> facts = {
      {"instruction set", std::string(info.isa_name) + ", fingerprint " + hexadecimal(info.isa_fingerprint)},
      {"ranks", std::to_string(info.rank_count)},
      {"memory a rank needs", format_bytes(info.weight_bytes + info.session_bytes) + ": " +
                                  format_bytes(info.weight_bytes) + " of weights, and " +
                                  format_bytes(info.session_bytes) + " for each session"}};
  for (const auto& [key, value] : read_metadata(program)) facts.push_back({key, value});
  std::string out;
  for (const auto& fact : facts) {
    out += fact[0] + std::string(22 - std::min<size_t>(21, fact[0].size()), ' ') + fact[1] + "\n";
  }

  std::vector<std::vector<std::string>> tensors = {{"tensor", "kind", "type", "size", "shape"}};
  for (uint32_t i = 0; i < info.tensor_count; ++i) {
    const TensorInfo tensor = program.tensor_info(i);
    tensors.push_back({std::string(tensor.name), tensor_kind_name(tensor.kind), dtype_name(tensor.dtype),
                       format_bytes(tensor.size_bytes), brackets(tensor.dimensions())});
  }
  out += "\n" + std::to_string(info.tensor_count) + " tensors\n" + format_table(tensors);
  for (uint32_t i = 0; i < info.entry_count; ++i) out += entry_to_text(program, i);
  return out;
}

}  // namespace

int inspect(const InspectOptions& options) {
  const Runtime runtime;
  const Program program(runtime, options.package);
  print(options.json ? to_json(program).dump(2) + "\n" : to_text(program));
  return 0;
}

}  // namespace mkrt::cli
