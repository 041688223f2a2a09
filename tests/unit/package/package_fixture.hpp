// A small valid package in a temporary folder, whose program.json tests edit before they read it.
//
//     PackageFixture fixture;
//     fixture.record(0)["op"] = "unknown";
//     CHECK_FAILURE(fixture.read(), MKRT_ERROR_FORMAT, "/entries/0/records/0/op", "unknown");
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../base/test_support.hpp"
#include "package/reader.hpp"
#include "package/writer.hpp"

namespace mkrt::test {

// A safetensors file of a header and data as they stand.
inline std::string safetensors_text(std::string_view header, std::string_view data) {
  std::string out;
  for (int shift = 0; shift < 64; shift += 8) out += static_cast<char>(uint64_t{header.size()} >> shift & 0xff);
  out += header;
  out += data;
  return out;
}

// Two ranks; two records: four tiles scale rows of an input by rows of a weight, four tiles sum the rows and keep them
// in a state tensor. The schedule keeps everything that the format demands.
class PackageFixture {
 public:
  using Json = nlohmann::ordered_json;

  PackageFixture() : program(default_program()) { write_weights(); }

  Json program;  // what program.json will hold

  Json& tensor(size_t index) { return program["tensors"][index]; }
  Json& record(size_t index, size_t entry = 0) { return program["entries"][entry]["records"][index]; }
  Json& opcode(size_t index) { return program["isa"]["opcodes"][index]; }

  // Puts the JSON text `value` at a JSON pointer; an empty text removes what is there.
  void edit(const std::string& pointer, std::string_view value) {
    const Json::json_pointer place(pointer);
    if (value.empty()) {
      Json& parent = program[place.parent_pointer()];
      REQUIRE(parent.contains(place.back()));
      parent.erase(place.back());
    } else {
      program[place] = Json::parse(value);
    }
  }

  const TemporaryFolder& folder() const { return folder_; }

  void write() const { folder_.write("program.json", program.dump(1)); }
  // Reads the package as it would be after write().
  package::Program read() const { return read_text(program.dump()); }
  // Reads the package as if program.json held this text.
  package::Program read_text(std::string_view text) const {
    return package::parse_program(text, folder_.path(), folder_.file("program.json"));
  }

 private:
  void write_weights() const {
    package::SafetensorsWriter writer(folder_.file("weights.safetensors"),
                                      {{"w.0", package::Dtype::f32, {4, 8}}, {"w.1", package::Dtype::f32, {4, 8}}});
    std::vector<float> values(64);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 8;
    writer.write(std::as_bytes(std::span(values)));
    writer.finish();
  }

  static Json default_program() {
    return Json::parse(R"json({
      "format": "mkrt.program", "version": 1, "ranks": 2,
      "isa": {"name": "test.rows", "version": 3, "opcodes": [
        {"name": "scale",
         "operands": [
           {"name": "x", "access": "read", "dtypes": ["f32"]},
           {"name": "weight", "access": "read", "dtypes": ["f32", "bf16"]},
           {"name": "bias", "access": "read", "dtypes": ["f32"], "optional": true},
           {"name": "out", "access": "write", "dtypes": ["f32"]}],
         "parameters": [{"name": "columns", "type": "u32"}, {"name": "shift", "type": "i32"},
                        {"name": "factor", "type": "f32"}],
         "constraints": ["x.size == columns", "weight.size * 4 <= pad(columns, 32) * 1", "grid.0 >= x.rows"],
         "faults": ["the row is empty"]},
        {"name": "sum",
         "operands": [
           {"name": "x", "access": "read", "dtypes": ["f32"]},
           {"name": "rows", "access": "append", "dtypes": ["f16"], "shared_dimensions": [0, 2]},
           {"name": "out", "access": "write", "dtypes": ["f32"]}],
         "parameters": [], "constraints": [], "faults": []}]},
      "images": [],
      "metadata": {"model": "rows", "note": ""},
      "weights": ["weights.safetensors"],
      "tensors": [
        {"name": "w", "dtype": "f32", "shape": [4, 8], "kind": "weight", "source": "w.{rank}"},
        {"name": "input", "dtype": "f32", "shape": [4, 8], "kind": "input"},
        {"name": "h", "dtype": "f32", "shape": [4, 8], "kind": "scratch"},
        {"name": "kept", "dtype": "f16", "shape": [32], "kind": "state"},
        {"name": "sums", "dtype": "f32", "shape": [4], "kind": "output"}],
      "entries": [
        {"name": "run",
         "counters": [{"name": "scaled", "size": 4}, {"name": "summed", "size": 1}],
         "records": [
           {"label": "scale rows", "op": "scale", "tiles": [4],
            "parameters": {"columns": 8, "shift": -3, "factor": 0.5},
            "operands": {"x": {"tensor": "input", "size": 8, "strides": [8]},
                         "weight": {"tensor": "w", "size": 8, "strides": [8]},
                         "out": {"tensor": "h", "size": 8, "strides": [8]}},
            "wait": [{"counter": "summed", "step": -1}],
            "signal": [{"counter": "scaled", "strides": [1]}]},
           {"op": "sum", "tiles": [4],
            "operands": {"x": {"tensor": "h", "size": 8, "strides": [8]},
                         "rows": {"tensor": "kept", "size": 8, "strides": [8]},
                         "out": {"tensor": "sums", "size": 1, "strides": [1]}},
            "wait": [{"counter": "scaled", "strides": [1]}],
            "signal": ["summed"]}]}]
    })json");
  }

  TemporaryFolder folder_;
};

}  // namespace mkrt::test
