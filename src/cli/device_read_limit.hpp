// How fast CUDA devices read their memory: what decoding on them is held to.
//
// Measured through the library as every other program is run: a package of the instruction set mkrt.read, which the
// tool writes and whose one instruction reads (kernels/mkrt_read.cu), on the same multiprocessors as the decoder.
#pragma once

#include <cstdint>
#include <vector>

#include "compile/compile.hpp"
#include "mkrt/mkrt.hpp"

namespace mkrt::cli {

class DeviceReadLimit {
 public:
  // `ranks` are on CUDA devices; `images` are those of mkrt_read. Holds a gigabyte of each rank's memory, or less where
  // that is not free. Throws mkrt::Error where no image fits a device or the library fails.
  DeviceReadLimit(const std::vector<RankOptions>& ranks, std::vector<compile::ImageFile> images);

  // Bytes a second that all ranks read together, now; the best of a few executes. Takes some hundredths of a second.
  double measure();

 private:
  // Makes everything ready to read so many bytes on each rank.
  void prepare(uint64_t bytes);
  void fill();

  std::vector<compile::ImageFile> images_;
  Runtime runtime_;
  Mesh mesh_;
  Program program_;
  Executable executable_;
  Session session_;
  uint64_t bytes_ = 0;  // of each rank
};

}  // namespace mkrt::cli
