#include "memory/fingerprint.hpp"

#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "memory/encode.hpp"
#include "memory/layout.hpp"

namespace mkrt::memory {

namespace {

class Hash {
 public:
  void add(std::span<const std::byte> bytes) noexcept {
    for (const std::byte byte : bytes) hash_ = (hash_ ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
  }
  void add(uint64_t value) noexcept { add(std::as_bytes(std::span(&value, 1))); }
  void add(std::string_view text) noexcept {
    add(text.size());
    add(std::as_bytes(std::span(text)));
  }
  uint64_t value() const noexcept { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

void add_tensor(Hash& hash, const package::Tensor& tensor) {
  hash.add(tensor.name);
  hash.add(static_cast<uint64_t>(tensor.dtype));
  hash.add(tensor.kind);
  hash.add(tensor.shape.size());
  for (const uint64_t size : tensor.shape) hash.add(size);
}

// The tables of two imagined ranks, whose weights lie apart: an operand's share of a rank shows in the second.
void add_entry(Hash& hash, const package::Program& program, const package::Entry& entry, const Layout& layout) {
  std::vector<uint64_t> weights;
  for (const package::Tensor& tensor : program.tensors) {
    const uint64_t end = weights.empty() ? 0 : weights.back();
    weights.push_back(end + heap_alignment + tensor.size_bytes);
  }
  hash.add(entry.name);
  hash.add(entry.counter_count);
  std::vector<mkrt_record> records(entry.records.size());
  for (const uint32_t rank : {0u, 1u}) {
    encode_entry(program, entry, layout, {rank, 0, weights}, records);
    hash.add(std::as_bytes(std::span(records)));
  }
}

}  // namespace

uint64_t program_fingerprint(const package::Program& program) {
  const Layout layout = plan_layout(program);
  Hash hash;
  hash.add(program.isa.name);
  hash.add(program.isa.fingerprint);
  hash.add(program.rank_count);
  hash.add(program.tensors.size());
  for (const package::Tensor& tensor : program.tensors) add_tensor(hash, tensor);
  hash.add(program.entries.size());
  for (const package::Entry& entry : program.entries) add_entry(hash, program, entry, layout);
  return hash.value();
}

}  // namespace mkrt::memory
