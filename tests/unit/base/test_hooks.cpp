#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/hooks.hpp"
#include "test_support.hpp"

using namespace mkrt::base;

namespace {

// A host application that counts what it gave, poisons it, and refuses sizes above a limit.
struct Host {
  size_t blocks = 0;
  size_t bytes = 0;
  size_t limit = SIZE_MAX;
  std::vector<std::pair<uint32_t, std::string>> messages;

  mkrt_runtime_desc desc() {
    mkrt_runtime_desc out{};
    out.struct_size = sizeof(out);
    out.user_data = this;
    out.allocate = [](void* self, size_t size, size_t alignment) {
      return static_cast<Host*>(self)->give(size, alignment);
    };
    out.release = [](void* self, void* memory, size_t size, size_t) { static_cast<Host*>(self)->take(memory, size); };
    out.log = [](void* self, uint32_t level, const char* message) {
      static_cast<Host*>(self)->messages.emplace_back(level, message);
    };
    return out;
  }

 private:
  void* give(size_t size, size_t alignment) {
    if (size > limit) return nullptr;
    void* memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    std::fill_n(static_cast<unsigned char*>(memory), size, static_cast<unsigned char>(0xcd));
    ++blocks;
    bytes += size;
    return memory;
  }
  void take(void* memory, size_t size) {
    std::free(memory);
    --blocks;
    bytes -= size;
  }
};

bool is_zero(const Block& block) {
  return std::all_of(block.data(), block.data() + block.size(), [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

TEST_CASE("a block takes the host's memory, zeroes it and gives it back with the same size") {
  Host host;
  const mkrt_runtime_desc desc = host.desc();
  const auto hooks = std::make_shared<const Hooks>(&desc);
  {
    const Block block(hooks, 1000, 256, "a test");
    CHECK(host.blocks == 1);
    CHECK(host.bytes == 1000);
    CHECK(reinterpret_cast<uintptr_t>(block.data()) % 256 == 0);
    CHECK(is_zero(block));
  }
  CHECK(host.blocks == 0);
  CHECK(host.bytes == 0);
}

TEST_CASE("a block whose contents do not matter is not touched") {
  Host host;
  const mkrt_runtime_desc desc = host.desc();
  const Block block(std::make_shared<const Hooks>(&desc), 1000, 64, "a test", Contents::arbitrary);
  CHECK(std::all_of(block.data(), block.data() + block.size(), [](std::byte byte) { return byte == std::byte{0xcd}; }));
}

TEST_CASE("a moved block is given back once") {
  Host host;
  const mkrt_runtime_desc desc = host.desc();
  const auto hooks = std::make_shared<const Hooks>(&desc);
  {
    Block first(hooks, 64, 64, "a test");
    Block second(std::move(first));
    Block third(hooks, 128, 64, "a test");
    third = std::move(second);
    CHECK(third.size() == 64);
  }
  CHECK(host.blocks == 0);
  CHECK(host.bytes == 0);
}

TEST_CASE("an empty block asks the host for nothing") {
  Host host;
  host.limit = 0;
  const mkrt_runtime_desc desc = host.desc();
  const Block block(std::make_shared<const Hooks>(&desc), 0, 64, "a test");
  CHECK(block.data() == nullptr);
  CHECK(block.size() == 0);
}

TEST_CASE("a host that has no memory is reported with the size and what it was for") {
  Host host;
  host.limit = 1024;
  const mkrt_runtime_desc desc = host.desc();
  const auto hooks = std::make_shared<const Hooks>(&desc);
  CHECK_FAILURE(Block(hooks, 1025, 64, "the session's tensors"), MKRT_ERROR_OUT_OF_MEMORY, "1025 bytes",
                "the session's tensors");
  CHECK(host.blocks == 0);
}

TEST_CASE("without hooks the heap serves, and refuses what no heap has") {
  const auto hooks = std::make_shared<const Hooks>(nullptr);
  const Block block(hooks, 100, 4096, "a test");
  CHECK(reinterpret_cast<uintptr_t>(block.data()) % 4096 == 0);
  CHECK(is_zero(block));
  CHECK_FAILURE(Block(hooks, SIZE_MAX / 2, 64, "a test"), MKRT_ERROR_OUT_OF_MEMORY, "a test");
  hooks->log(MKRT_LOG_ERROR, "goes nowhere");
}

TEST_CASE("the log receives messages up to its level, by default warnings") {
  Host host;
  mkrt_runtime_desc desc = host.desc();
  const Hooks warnings(&desc);
  desc.log_level = MKRT_LOG_DEBUG;
  const Hooks everything(&desc);
  warnings.log(MKRT_LOG_INFO, "dropped");
  warnings.log(MKRT_LOG_WARNING, "kept");
  everything.log(MKRT_LOG_DEBUG, "kept too");
  REQUIRE(host.messages.size() == 2);
  CHECK(host.messages[0] == std::pair<uint32_t, std::string>(MKRT_LOG_WARNING, "kept"));
  CHECK(host.messages[1] == std::pair<uint32_t, std::string>(MKRT_LOG_DEBUG, "kept too"));
}
