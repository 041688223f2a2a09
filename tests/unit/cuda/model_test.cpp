// A real model through the whole runtime onto a simulated GPU: image and weights from its package, the same bits as on
// the host device.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

#include "compile/compile.hpp"
#include "driver_double.hpp"
#include "host/isa.hpp"
#include "runtime/executable.hpp"
#include "runtime/session.hpp"
#include "temporary_folder.hpp"

using namespace mkrt;
using cuda::test::DriverDouble;
using cuda::test::FakeImage;

namespace {

constexpr uint32_t prompt_size = 5;
constexpr uint32_t steps = 24;

struct Text {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
  bool operator==(const Text&) const = default;
};

std::vector<mkrt_rank_desc> ranks_on(uint32_t kind, const std::vector<uint32_t>& ordinals) {
  std::vector<mkrt_rank_desc> ranks;
  for (const uint32_t ordinal : ordinals) {
    mkrt_rank_desc& rank = ranks.emplace_back();
    rank.struct_size = sizeof(rank);
    rank.kind = kind;
    rank.ordinal = ordinal;
  }
  return ranks;
}

// What the last rank has: all have the same.
Text continue_prompt(const std::shared_ptr<runtime::Program>& program, const std::vector<mkrt_rank_desc>& ranks,
                     uint32_t queue_mode) {
  auto mesh = runtime::create_mesh(program->runtime(), ranks, {});
  const auto session = runtime::create_session(runtime::create_executable(program, std::move(mesh), {}));
  mkrt_error error = MKRT_ERROR_INIT;
  const auto put = [&](const char* name, std::vector<int32_t> values) {
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
      REQUIRE(session->write(rank, program->find_tensor(name), 0, values.data(), values.size() * sizeof(int32_t),
                             &error) == MKRT_OK);
    }
  };
  put("tokens", {1, 17, 42, 99, 3});
  put("prompt_length", {prompt_size});
  put("active", {1});
  mkrt_execute_desc execute{};
  execute.struct_size = sizeof(execute);
  execute.step_count = steps;
  execute.queue_mode = queue_mode;
  uint64_t value = 0;
  REQUIRE_MESSAGE(session->execute(execute, &value, &error) == MKRT_OK, error.message);
  REQUIRE_MESSAGE(session->wait(value, UINT64_MAX, &error) == MKRT_OK, error.message);
  Text text;
  text.tokens.resize(steps + 1);
  const uint32_t logits = program->find_tensor("logits");
  text.logits.resize(program->package()->tensors[logits].elements);
  const auto last = static_cast<uint32_t>(ranks.size() - 1);
  REQUIRE(session->read(last, program->find_tensor("tokens"), 0, text.tokens.size() * sizeof(int32_t),
                        text.tokens.data(), &error) == MKRT_OK);
  REQUIRE(session->read(last, logits, 0, text.logits.size() * sizeof(float), text.logits.data(), &error) == MKRT_OK);
  return text;
}

// A package of novelist for so many ranks, with an image for the double.
struct Novelist {
  explicit Novelist(uint32_t ranks) {
    std::ofstream(folder.path("mkrt_llm.sm_90.cubin"), std::ios::binary) << FakeImage(isa().fingerprint).bytes();
    compile::Options options{MKRT_TEST_DATA "/novelist", folder.path("package")};
    options.context = 64;
    options.ranks = ranks;
    options.images = {{"sm_90", folder.path("mkrt_llm.sm_90.cubin")}};
    compile::compile_model(options);
  }
  static const mkrt_host_isa& isa() {
    REQUIRE(!host::builtin_isas().empty());
    return *host::builtin_isas().front();
  }
  std::string package() const { return folder.path("package"); }
  test::TemporaryFolder folder;
};

}  // namespace

TEST_CASE("a model writes the same on simulated GPUs as on the host device, on one rank and on several") {
  for (const std::vector<uint32_t>& ordinals :
       {std::vector<uint32_t>{0}, {0, 0}, {0, 1}, {0, 0, 0}, {2, 1, 0}, {0, 1, 0}}) {
    const auto ranks = static_cast<uint32_t>(ordinals.size());
    CAPTURE(ranks);
    const Novelist novelist(ranks);
    DriverDouble gpu(std::vector<cuda::test::SimulatedDevice>(3));
    gpu.add_isa(Novelist::isa());
    const auto runtime = runtime::create_runtime(nullptr, {}, DriverDouble::open);
    const auto program = runtime::load_program(runtime, novelist.package().c_str());
    const Text expected = continue_prompt(program, ranks_on(MKRT_DEVICE_HOST, ordinals), MKRT_QUEUE_DYNAMIC);
    CHECK(std::any_of(expected.logits.begin(), expected.logits.end(), [](float logit) { return logit != 0; }));
    for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
      CHECK(continue_prompt(program, ranks_on(MKRT_DEVICE_CUDA, ordinals), mode) == expected);
    }
  }
}
