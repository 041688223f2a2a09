// A small package and the instruction set that runs it, written against public headers only.
//
// The package has one tensor of each kind and entries that compute, fault, block and never end; `Gate` blocks and
// opens the instructions of the entry "gate".
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "mkrt/host_isa.h"
#include "mkrt/mkrt.h"

namespace test {

// A folder that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "mkrt-abi-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << content;
  }

 private:
  std::string path_;
};

constexpr uint32_t rows = 4;
constexpr uint32_t columns = 8;
constexpr float weight_of(uint32_t column) { return 0.5f + static_cast<float>(column); }

// Indices in the package below.
enum TensorIndex : uint32_t { tensor_x, tensor_w, tensor_sum, tensor_out, tensor_hidden, tensor_value, tensor_done };
enum EntryIndex : uint32_t { entry_scale, entry_check, entry_gate, entry_sum };

// Blocks the instruction "gate" while closed.
inline std::atomic<bool> gate_is_open{true};
inline std::atomic<uint32_t> gate_entered{0};

// Closed while it lives.
class ClosedGate {
 public:
  ClosedGate() {
    gate_entered = 0;
    gate_is_open = false;
  }
  ClosedGate(const ClosedGate&) = delete;
  ClosedGate& operator=(const ClosedGate&) = delete;
  ~ClosedGate() { open(); }
  void open() { gate_is_open = true; }
  // Returns when a worker is inside.
  void wait_until_entered() const {
    while (gate_entered == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
};

inline uint32_t run_scale(const mkrt_host_tile* tile) {
  const auto* x = static_cast<const float*>(mkrt_host_operand(tile, 0));
  const auto* w = static_cast<const float*>(mkrt_host_operand(tile, 1));
  auto* out = static_cast<float*>(mkrt_host_operand(tile, 2));
  const uint64_t count = mkrt_host_operand_size(tile, 0) / sizeof(float);
  for (uint64_t i = 0; i < count; ++i) out[i] = x[i] * w[i];
  return 0;
}
inline uint32_t run_copy(const mkrt_host_tile* tile) {
  std::memcpy(mkrt_host_operand(tile, 1), mkrt_host_operand(tile, 0), mkrt_host_operand_size(tile, 0));
  return 0;
}
inline uint32_t run_check(const mkrt_host_tile* tile) {
  const auto* value = static_cast<const int32_t*>(mkrt_host_operand(tile, 0));
  if (*value < 0) return 1;
  *static_cast<int32_t*>(mkrt_host_operand(tile, 1)) = *value + 1;
  return 0;
}
inline uint32_t run_gate(const mkrt_host_tile* tile) {
  ++gate_entered;
  while (!gate_is_open) std::this_thread::sleep_for(std::chrono::microseconds(100));
  *static_cast<int32_t*>(mkrt_host_operand(tile, 0)) = 7;
  return 0;
}
inline uint32_t run_sum(const mkrt_host_tile* tile) {
  const auto* x = static_cast<const float*>(mkrt_host_operand(tile, 0));
  auto* sum = static_cast<float*>(mkrt_host_operand(tile, 1));
  const uint64_t count = mkrt_host_operand_size(tile, 0) / sizeof(float);
  for (uint64_t i = 0; i < count; ++i) sum[i] += x[i];
  return 0;
}

inline constexpr mkrt_host_instruction instructions[] = {run_scale, run_copy, run_check, run_gate, run_sum};

inline std::string program_json(uint32_t ranks = 1) {
  return R"({"format": "mkrt.program", "version": 1, "ranks": )" + std::to_string(ranks) + R"(,
 "isa": {"name": "test.abi", "version": 1, "opcodes": [
  {"name": "scale", "operands": [{"name": "x", "access": "read", "dtypes": ["f32"]},
                                 {"name": "w", "access": "read", "dtypes": ["f32"]},
                                 {"name": "out", "access": "write", "dtypes": ["f32"]}],
   "parameters": [], "constraints": ["w.size == x.size", "out.size == x.size"], "faults": []},
  {"name": "copy", "operands": [{"name": "x", "access": "read", "dtypes": ["f32"]},
                                {"name": "out", "access": "write", "dtypes": ["f32"]}],
   "parameters": [], "constraints": ["out.size == x.size"], "faults": []},
  {"name": "check", "operands": [{"name": "value", "access": "read", "dtypes": ["i32"]},
                                 {"name": "done", "access": "write", "dtypes": ["i32"]}],
   "parameters": [], "constraints": ["value.size == 1", "done.size == 1"], "faults": ["the value is negative"]},
  {"name": "gate", "operands": [{"name": "done", "access": "write", "dtypes": ["i32"]}],
   "parameters": [], "constraints": ["done.size == 1"], "faults": []},
  {"name": "sum", "operands": [{"name": "x", "access": "read", "dtypes": ["f32"]},
                               {"name": "sum", "access": "read_write", "dtypes": ["f32"]}],
   "parameters": [], "constraints": ["sum.size == x.size"], "faults": []}]},
 "images": [], "metadata": {"author": "tests/abi", "empty": ""}, "weights": ["weights.safetensors"],
 "tensors": [
  {"name": "x", "dtype": "f32", "shape": [4, 8], "kind": "input"},
  {"name": "w", "dtype": "f32", "shape": [8], "kind": "weight", "source": "w"},
  {"name": "sum", "dtype": "f32", "shape": [4, 8], "kind": "state"},
  {"name": "out", "dtype": "f32", "shape": [4, 8], "kind": "output"},
  {"name": "hidden", "dtype": "f32", "shape": [4, 8], "kind": "scratch"},
  {"name": "value", "dtype": "i32", "shape": [1], "kind": "input"},
  {"name": "done", "dtype": "i32", "shape": [1], "kind": "output"}],
 "entries": [
  {"name": "scale", "counters": [{"name": "scaled", "size": 4}, {"name": "copied", "size": 4}], "records": [
   {"label": "first", "op": "scale", "tiles": [4],
    "operands": {"x": {"tensor": "x", "size": 8, "strides": [8]}, "w": "w",
                 "out": {"tensor": "hidden", "size": 8, "strides": [8]}},
    "wait": [{"counter": "copied", "strides": [1], "step": -1}], "signal": [{"counter": "scaled", "strides": [1]}]},
   {"op": "copy", "tiles": [4],
    "operands": {"x": {"tensor": "hidden", "size": 8, "strides": [8]},
                 "out": {"tensor": "out", "size": 8, "strides": [8]}},
    "wait": [{"counter": "scaled", "strides": [1]}], "signal": [{"counter": "copied", "strides": [1]}]}]},
  {"name": "check", "counters": [{"name": "checked", "size": 1}], "records": [
   {"label": "look", "op": "check", "tiles": [1], "operands": {"value": "value", "done": "done"},
    "wait": [{"counter": "checked", "step": -1}], "signal": ["checked"]}]},
  {"name": "gate", "counters": [{"name": "passed", "size": 1}, {"name": "left", "size": 1}], "records": [
   {"label": "block", "op": "gate", "tiles": [1], "operands": {"done": "done"},
    "wait": [{"counter": "left", "step": -1}], "signal": ["passed"]},
   {"label": "behind", "op": "gate", "tiles": [1], "operands": {"done": "done"},
    "wait": ["passed"], "signal": ["left"]}]},
  {"name": "sum", "counters": [{"name": "summed", "size": 4}], "records": [
   {"label": "add", "op": "sum", "tiles": [4],
    "operands": {"x": {"tensor": "x", "size": 8, "strides": [8]},
                 "sum": {"tensor": "sum", "size": 8, "strides": [8]}},
    "wait": [{"counter": "summed", "strides": [1], "step": -1}],
    "signal": [{"counter": "summed", "strides": [1]}]}]}]})";
}

inline std::string weights_file() {
  std::string header = R"({"w":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += header;
  for (uint32_t column = 0; column < columns; ++column) {
    const float weight = weight_of(column);
    file.append(reinterpret_cast<const char*>(&weight), sizeof(weight));
  }
  return file;
}

inline void write_package(const TemporaryFolder& folder, uint32_t ranks = 1) {
  folder.write("program.json", program_json(ranks));
  folder.write("weights.safetensors", weights_file());
}

// The fingerprint that mkrt computes for the definition above: what `mkrt inspect` tells the author of an ISA.
inline uint64_t ask_fingerprint(const std::string& package) {
  mkrt_runtime* runtime = nullptr;
  mkrt_program* program = nullptr;
  mkrt_error error = MKRT_ERROR_INIT;
  mkrt_program_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.path = package.c_str();
  mkrt_program_info info{};
  info.struct_size = sizeof(info);
  if (mkrt_runtime_create(nullptr, &runtime, nullptr) != MKRT_OK ||
      mkrt_program_load(runtime, &desc, &program, &error) != MKRT_OK ||
      mkrt_program_get_info(program, &info, nullptr) != MKRT_OK) {
    std::fprintf(stderr, "the test's own package does not load: %s\n", error.message);
    std::abort();
  }
  mkrt_program_destroy(program);
  mkrt_runtime_destroy(runtime);
  return info.isa_fingerprint;
}

// The package on disk and what mkrt_runtime_create needs to run it.
struct TestPackage {
  explicit TestPackage(uint32_t ranks = 1) {
    write_package(folder, ranks);
    isa.struct_size = sizeof(isa);
    isa.opcode_count = sizeof(instructions) / sizeof(instructions[0]);
    isa.fingerprint = ask_fingerprint(folder.path());
    isa.name = "test.abi";
    isa.instructions = instructions;
    extension.base.struct_size = sizeof(extension);
    extension.base.type = MKRT_EXTENSION_HOST_ISA;
    extension.isa_count = 1;
    extension.isas = &isa_list;
    program_desc.struct_size = sizeof(program_desc);
    program_desc.path = folder.path().c_str();
  }
  TestPackage(const TestPackage&) = delete;
  TestPackage& operator=(const TestPackage&) = delete;

  mkrt_runtime_desc runtime_desc() const {
    mkrt_runtime_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.next = &extension.base;
    return desc;
  }

  TemporaryFolder folder;
  mkrt_host_isa isa{};
  const mkrt_host_isa* isa_list = &isa;
  mkrt_host_isa_extension extension{};
  mkrt_program_desc program_desc{};
};

// Ranks of host threads.
struct HostRanks {
  explicit HostRanks(uint32_t rank_count = 1, uint32_t workers = 2) : ranks(rank_count) {
    for (mkrt_rank_desc& rank : ranks) {
      rank = mkrt_rank_desc{};
      rank.struct_size = sizeof(rank);
      rank.kind = MKRT_DEVICE_HOST;
      rank.worker_count = workers;
    }
    desc.struct_size = sizeof(desc);
    desc.rank_count = rank_count;
    desc.ranks = ranks.data();
  }
  HostRanks(const HostRanks&) = delete;
  HostRanks& operator=(const HostRanks&) = delete;

  std::vector<mkrt_rank_desc> ranks;
  mkrt_mesh_desc desc{};
};

// One of each handle, made in order; destroyed in any.
struct Objects {
  mkrt_runtime* runtime = nullptr;
  mkrt_mesh* mesh = nullptr;
  mkrt_program* program = nullptr;
  mkrt_executable* executable = nullptr;
  mkrt_session* session = nullptr;

  // The first status that is not MKRT_OK; what was made stays.
  mkrt_status create(const mkrt_runtime_desc& runtime_desc, const mkrt_mesh_desc& mesh_desc,
                     const mkrt_program_desc& program_desc, mkrt_error* out_error) {
    mkrt_status status = mkrt_runtime_create(&runtime_desc, &runtime, out_error);
    if (status == MKRT_OK) status = mkrt_mesh_create(runtime, &mesh_desc, &mesh, out_error);
    if (status == MKRT_OK) status = mkrt_program_load(runtime, &program_desc, &program, out_error);
    if (status == MKRT_OK) status = mkrt_executable_create(program, mesh, nullptr, &executable, out_error);
    if (status == MKRT_OK) status = mkrt_session_create(executable, &session, out_error);
    return status;
  }
  void destroy() {
    mkrt_session_destroy(session);
    mkrt_executable_destroy(executable);
    mkrt_program_destroy(program);
    mkrt_mesh_destroy(mesh);
    mkrt_runtime_destroy(runtime);
    *this = Objects{};
  }
};

// All five, ready to execute.
struct Ready : Objects {
  explicit Ready(const TestPackage& package, uint32_t rank_count = 1, uint32_t workers = 2) {
    const HostRanks ranks(rank_count, workers);
    mkrt_error error = MKRT_ERROR_INIT;
    if (create(package.runtime_desc(), ranks.desc, package.program_desc, &error) != MKRT_OK) {
      std::fprintf(stderr, "the test's own package cannot be made ready: %s\n", error.message);
      std::abort();
    }
  }
  Ready(const Ready&) = delete;
  Ready& operator=(const Ready&) = delete;
  ~Ready() { destroy(); }
};

inline mkrt_execute_desc execute_desc(uint32_t entry, uint32_t step_count = 1) {
  mkrt_execute_desc desc{};
  desc.struct_size = sizeof(desc);
  desc.entry = entry;
  desc.step_count = step_count;
  return desc;
}

constexpr uint64_t milliseconds = 1000000;  // in nanoseconds

}  // namespace test
