// The weights of a Hugging Face model folder: one safetensors file, or several with an index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "package/safetensors.hpp"

namespace mkrt::compile {

enum class SourceDtype : uint8_t { f32, f16, bf16 };

constexpr uint64_t dtype_bytes(SourceDtype dtype) noexcept { return dtype == SourceDtype::f32 ? 4 : 2; }

// A tensor of the checkpoint, row after row. The bytes may have any alignment.
struct SourceTensor {
  SourceDtype dtype = SourceDtype::bf16;
  std::span<const std::byte> bytes;
};

class Checkpoint {
 public:
  // Maps model.safetensors, or the files that model.safetensors.index.json names. Throws base::Failure (FILE, FORMAT).
  explicit Checkpoint(const std::string& folder);

  // The tensor of that name, valid while the checkpoint lives. Throws base::Failure that names the tensor: FORMAT where
  // it is missing or of another shape, UNSUPPORTED for another dtype.
  SourceTensor take(const std::string& name, const std::vector<uint64_t>& shape);

  // Throws base::Failure (UNSUPPORTED) that names the first tensor which was never taken: a model with weights that the
  // program ignores would compute something else. Left out are tensors that hold nothing of their own: stored rotary
  // frequencies, and the head of a model whose embeddings are tied.
  void refuse_unused(bool tied_embeddings) const;

  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

 private:
  void open(const std::string& path);
  void open_index(const std::string& folder, const std::string& index_path);

  std::string folder_;
  std::vector<std::unique_ptr<const package::SafetensorsFile>> files_;
  std::map<std::string, const package::SafetensorsView*, std::less<>> tensors_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace mkrt::compile
