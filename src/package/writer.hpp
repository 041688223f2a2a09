// Writing packages: program.json, and weight files tensor by tensor.
//
// Both write beside the final name and rename at the end, so that a failure leaves no half-written file under the name
// that a reader looks for. Both throw base::Failure (FILE) that names the file and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "package/program.hpp"

namespace mkrt::package {

// What program.json needs beyond a Program.
struct ProgramFiles {
  std::vector<std::string> weights;  // safetensors file names, relative to the package's folder
  // Name in the weight files of each tensor of kind weight, in the order of the tensors ("{rank}" stands for the rank's
  // number). Empty: the names of the tensors themselves.
  std::vector<std::string> sources;
};

// Writes `program` as `path`, one line for each tensor, counter array, opcode part and record. Of the Program, what
// the file states is used: path, weight files, sources, fingerprint, and everything that follows from other fields are
// not looked at. The order of records is kept; metadata may come back in another order.
void write_program(const Program& program, const ProgramFiles& files, const std::string& path);

// A safetensors file that is written from front to back: what is held in memory is its header.
class SafetensorsWriter {
 public:
  struct TensorSpec {
    std::string name;
    Dtype dtype = Dtype::f32;
    std::vector<uint64_t> shape;
  };
  // Called after each write() with the bytes of data that were written, and all that there will be.
  using Progress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

  // Opens the file and writes the header. Data starts at a multiple of 64 bytes and follows without gaps, as the format
  // demands: every tensor before which only multiples of 64 bytes lie is aligned to 64 bytes.
  SafetensorsWriter(std::string path, const std::vector<TensorSpec>& tensors, Progress progress = {});
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;
  // Removes the file unless finish() has returned.
  ~SafetensorsWriter();

  // The next bytes, in pieces of any size, of the tensors in their order.
  void write(std::span<const std::byte> bytes);
  // Bytes that write() still expects.
  uint64_t remaining() const noexcept { return total_ - done_; }
  // Gives the file its name. Nothing may remain.
  void finish();

 private:
  std::string path_;
  std::string partial_path_;
  std::ofstream stream_;
  Progress progress_;
  uint64_t total_ = 0;
  uint64_t done_ = 0;
  bool finished_ = false;
};

}  // namespace mkrt::package
