#include "runtime/hook_allocator.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <memory>

#include "base/failure.hpp"

namespace {

struct Counted {
  size_t live = 0;
  size_t last_alignment = 0;
  bool fails = false;

  mkrt_runtime_desc desc() {
    mkrt_runtime_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.user_data = this;
    desc.allocate = [](void* self, size_t size, size_t alignment) -> void* {
      auto& counted = *static_cast<Counted*>(self);
      if (counted.fails) return nullptr;
      counted.live += size;
      counted.last_alignment = alignment;
      return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    };
    desc.release = [](void* self, void* memory, size_t size, size_t) {
      static_cast<Counted*>(self)->live -= size;
      std::free(memory);
    };
    return desc;
  }
};

}  // namespace

TEST_CASE("shared objects lie in the hooks' memory and outlive the hooks object that made them") {
  Counted counted;
  std::weak_ptr<int> watcher;
  {
    std::shared_ptr<int> number;
    {
      const mkrt_runtime_desc desc = counted.desc();
      const mkrt::base::Hooks hooks(&desc);
      number = mkrt::runtime::make_object<int>(hooks, 5);
      watcher = number;
    }
    CHECK(*number == 5);
    CHECK(counted.live > sizeof(int));
  }
  CHECK(watcher.expired());
  watcher.reset();  // the control block goes with the last watcher
  CHECK(counted.live == 0);
}

TEST_CASE("types with an alignment of their own get it") {
  struct alignas(128) Wide {
    char bytes[128];
  };
  Counted counted;
  const mkrt_runtime_desc desc = counted.desc();
  const auto wide = mkrt::runtime::make_object<Wide>(mkrt::base::Hooks(&desc));
  CHECK(counted.last_alignment == 128);
  CHECK(reinterpret_cast<uintptr_t>(wide.get()) % 128 == 0);
}

TEST_CASE("a hook that has no memory is a Failure, not a bad_alloc without a sentence") {
  Counted counted;
  counted.fails = true;
  const mkrt_runtime_desc desc = counted.desc();
  CHECK_THROWS_AS(mkrt::runtime::make_object<int>(mkrt::base::Hooks(&desc), 1), mkrt::base::Failure);
}
