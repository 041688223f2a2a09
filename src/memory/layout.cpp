#include "memory/layout.hpp"

#include "base/failure.hpp"

namespace mkrt::memory {

namespace {

// Offsets are handed out from 0 upwards; none passes 2^63, so that differences of addresses fit in an int64_t.
class Bump {
 public:
  explicit Bump(const char* what) : what_(what) {}

  uint64_t take(uint64_t size) {
    const uint64_t offset = (used_ + heap_alignment - 1) / heap_alignment * heap_alignment;
    if (offset > limit || size > limit - offset) {
      throw base::Failure(MKRT_ERROR_OUT_OF_MEMORY, base::text("the program needs more than 2^63 bytes of ", what_));
    }
    used_ = offset + size;
    return offset;
  }
  uint64_t used() const { return used_; }

 private:
  static constexpr uint64_t limit = INT64_MAX - heap_alignment;
  const char* what_;
  uint64_t used_ = 0;
};

}  // namespace

Layout plan_layout(const package::Program& program) {
  Layout layout;
  layout.tensor_offsets.assign(program.tensors.size(), Layout::no_offset);
  Bump heap("session memory");
  for (const uint32_t kind : {MKRT_TENSOR_STATE, MKRT_TENSOR_INPUT, MKRT_TENSOR_OUTPUT, MKRT_TENSOR_SCRATCH}) {
    for (size_t i = 0; i < program.tensors.size(); ++i) {
      if (program.tensors[i].kind == kind) layout.tensor_offsets[i] = heap.take(program.tensors[i].size_bytes);
    }
  }
  for (const package::Entry& entry : program.entries) {
    layout.counter_offsets.push_back(heap.take(uint64_t{entry.counter_count} * MKRT_COUNTER_STRIDE));
  }
  // A heap is a whole number of alignments, so that ranks' heaps may follow each other.
  layout.session_bytes = heap.used() == 0 ? heap_alignment : heap.take(0);

  Bump weights("weights");
  for (const package::Tensor& tensor : program.tensors) {
    if (tensor.kind == MKRT_TENSOR_WEIGHT) weights.take(tensor.size_bytes);
  }
  layout.weight_bytes = weights.used();
  return layout;
}

}  // namespace mkrt::memory
