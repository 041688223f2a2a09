// The kernels of this build and models of published sizes: their shared memory fits every chip that they are for.
#include <doctest/doctest.h>
#include <elf.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "base/failure.hpp"
#include "cli/read_package.hpp"
#include "compile/llm_isa.hpp"
#include "compile/lower.hpp"
#include "compile/model.hpp"
#include "cuda/image.hpp"
#include "kernel_images.hpp"
#include "package/isa.hpp"
#include "package/reader.hpp"
#include "random_model.hpp"
#include "temporary_folder.hpp"

using namespace mkrt;

namespace {

// What a block may have on one chip or another.
constexpr uint32_t small_chip = 99 * 1024, medium_chip = 163 * 1024, large_chip = 227 * 1024;

// In static mode: a ring with fewer pages keeps memory waiting.
constexpr uint32_t pages_on_their_way = 4;

// The least that a chip has for which such a cubin is the one that is picked.
uint32_t chip_of(const std::string& target) {
  const std::map<std::string, uint32_t> others{
      {"sm_80", medium_chip}, {"sm_86", small_chip}, {"sm_89", small_chip}, {"sm_120", small_chip}};
  const auto found = others.find(target);
  return found == others.end() ? large_chip : found->second;
}

template <class Part>
Part part_at(const std::string& file, size_t offset) {
  REQUIRE(offset <= file.size() - sizeof(Part));
  Part part;
  std::memcpy(&part, file.data() + offset, sizeof(part));
  return part;
}

// The value of `mkrt_image` in a cubin, which is an ELF file.
mkrt_image_info image_info(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(stream), {}};
  REQUIRE(file.size() > sizeof(Elf64_Ehdr));
  const auto header = part_at<Elf64_Ehdr>(file, 0);
  const auto section = [&](size_t number) {
    return part_at<Elf64_Shdr>(file, header.e_shoff + number * sizeof(Elf64_Shdr));
  };
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr symbols = section(i);
    if (symbols.sh_type != SHT_SYMTAB) continue;
    const Elf64_Shdr names = section(symbols.sh_link);
    for (size_t at = 0; at < symbols.sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = part_at<Elf64_Sym>(file, symbols.sh_offset + at);
      if (std::strcmp(file.c_str() + names.sh_offset + symbol.st_name, "mkrt_image") != 0) continue;
      REQUIRE(symbol.st_size == sizeof(mkrt_image_info));
      return part_at<mkrt_image_info>(file, section(symbol.st_shndx).sh_offset + symbol.st_value);
    }
  }
  FAIL("no mkrt_image in " << path);
  return {};
}

package::Program schedule_of(const nlohmann::ordered_json& config, uint32_t batch) {
  const test::TemporaryFolder folder;
  folder.write("config.json", config.dump());
  package::JsonOrigin origin;
  origin.file = "mkrt.llm.json";
  const package::Json json = package::parse_json(compile::kLlmIsaJson, origin.file);
  compile::Choices choices;
  choices.batch = batch;
  choices.context = 2048;
  return compile::lower(compile::read_model(folder.path()), choices,
                        package::parse_isa(package::JsonView(json, origin)))
      .program;
}

// Shapes of tests/tools, and one with the largest heads that attention takes, of which queries and keys have norms.
constexpr const char* largest_heads = "heads of 256";
constexpr const char* shapes[] = {"llama-3.2-1b", "llama-3.1-8b", "qwen2.5-0.5b",
                                  "qwen3-0.6b",   "smollm-135m",  largest_heads};
nlohmann::ordered_json config_of(const std::string& shape) {
  if (shape != largest_heads) return tools::shape_config(shape);
  nlohmann::ordered_json config = tools::shape_config("tiny-qwen3");
  config["head_dim"] = 256;
  return config;
}

}  // namespace

TEST_CASE("models of published sizes fit the shared memory of every chip that has an image, in every batch") {
  for (const auto& [target, path] : test::kernel_images()) {
    const mkrt_image_info info = image_info(path);
    REQUIRE(info.launch_version == MKRT_LAUNCH_VERSION);
    for (const std::string shape : shapes) {
      for (const uint32_t batch : {1, 3, 16}) {
        const package::Program program = schedule_of(config_of(shape), batch);
        for (const uint32_t bytes : {small_chip, medium_chip, large_chip}) {
          CAPTURE(shape);
          CAPTURE(batch);
          CAPTURE(target);
          CAPTURE(bytes);
          if (bytes < chip_of(target)) continue;
          const cuda::SharedMemoryPlan plan = cuda::plan_shared_memory(program, info, bytes);
          CHECK(plan.total_bytes <= bytes);
          CHECK(plan.activation_bytes > 0);
          // On a small chip large heads leave the ring no more than it needs.
          const bool enough = batch == 1 && shape != largest_heads;
          CHECK(plan.page_count >= (enough ? pages_on_their_way : info.minimum_pages));
        }
      }
    }
  }
}

TEST_CASE("an image for larger chips is refused on a small one, with the bytes that it needs") {
  const package::Program program = schedule_of(config_of("llama-3.1-8b"), 1);
  for (const auto& [target, path] : test::kernel_images()) {
    CAPTURE(target);
    const mkrt_image_info info = image_info(path);
    if (chip_of(target) == small_chip) continue;
    std::string message;
    try {
      cuda::plan_shared_memory(program, info, small_chip);
    } catch (const base::Failure& failure) {
      CHECK(failure.status() == MKRT_ERROR_UNSUPPORTED);
      message = failure.message();
    }
    // Queries of 4 heads, newest key and value, rotation and room for two norms, 16 rows of keys and values.
    const uint32_t buffer = (4 + 5) * 128 * 4 + 2 * 16 * 128 * 2;
    const uint32_t needed = info.fixed_shared_bytes + 2 * buffer + info.minimum_pages * info.page_bytes;
    CHECK(message.find(" needs " + std::to_string(needed) + " bytes of shared memory in a block, and the device has " +
                       std::to_string(small_chip)) != std::string::npos);
  }
}

TEST_CASE("what measures a read limit fits every chip, and is for the package that the tool writes") {
  const test::TemporaryFolder folder;
  cli::write_read_package(folder.path(), 1 << 28, 1, test::kernel_images("mkrt_read"));
  const package::Program program = package::read_package(folder.path());
  for (const auto& [target, path] : test::kernel_images("mkrt_read")) {
    CAPTURE(target);
    const mkrt_image_info info = image_info(path);
    CHECK(info.isa_fingerprint == program.isa.fingerprint);
    CHECK(info.block_size == 1024);  // as many as every chip allows
    const cuda::SharedMemoryPlan plan = cuda::plan_shared_memory(program, info, chip_of(target));
    CHECK(plan.total_bytes <= chip_of(target));
    CHECK(plan.activation_bytes == 0);
  }
  CHECK(program.images.size() == test::kernel_images().size());
}

TEST_CASE("this build has kernels") { CHECK(!test::kernel_images().empty()); }
