// Reading safetensors files: mapped into memory, tensors found by name, every offset checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.hpp"

namespace mkrt::package {

enum class Dtype : uint32_t;  // program.hpp

// What safetensors files call a dtype of packages, such as "BF16".
std::string_view safetensors_dtype(Dtype dtype) noexcept;
// Bytes of an element of a dtype that safetensors files may name; 0 for others.
uint64_t safetensors_dtype_size(std::string_view dtype) noexcept;

// Bytes of one tensor inside a mapped file; valid while the SafetensorsFile lives.
struct SafetensorsView {
  std::string_view dtype;  // as the file names it, such as "BF16"; static
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;
};

class SafetensorsFile {
 public:
  // Maps `path` and checks its header: every tensor's bytes lie in the file, are as many as dtype and shape need, and
  // leave no gap and no overlap. Their addresses may be unaligned. Throws base::Failure (FILE or FORMAT) with a
  // sentence that names the file, and the tensor where there is one.
  explicit SafetensorsFile(const std::string& path);

  // The tensor of that name, or nullptr.
  const SafetensorsView* find(std::string_view name) const noexcept;
  // All tensors, sorted by name.
  struct Named {
    std::string name;
    SafetensorsView view;
  };
  std::span<const Named> tensors() const noexcept { return tensors_; }
  const std::string& path() const noexcept { return file_.path(); }
  const base::MappedFile& file() const noexcept { return file_; }
  // Asks the system to make the whole file present now.
  void prefetch() const noexcept { file_.prefetch(file_.bytes()); }

 private:
  base::MappedFile file_;
  std::vector<Named> tensors_;
};

}  // namespace mkrt::package
