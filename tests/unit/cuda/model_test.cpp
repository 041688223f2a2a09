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

Text continue_prompt(const std::shared_ptr<runtime::Program>& program, uint32_t kind, uint32_t queue_mode) {
  mkrt_rank_desc rank{};
  rank.struct_size = sizeof(rank);
  rank.kind = kind;
  auto mesh = runtime::create_mesh(program->runtime(), {&rank, 1}, nullptr);
  const auto session = runtime::create_session(runtime::create_executable(program, std::move(mesh), {}));
  mkrt_error error = MKRT_ERROR_INIT;
  const auto put = [&](const char* name, std::vector<int32_t> values) {
    REQUIRE(session->write(0, program->find_tensor(name), 0, values.data(), values.size() * sizeof(int32_t), &error) ==
            MKRT_OK);
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
  REQUIRE(session->read(0, program->find_tensor("tokens"), 0, text.tokens.size() * sizeof(int32_t), text.tokens.data(),
                        &error) == MKRT_OK);
  REQUIRE(session->read(0, logits, 0, text.logits.size() * sizeof(float), text.logits.data(), &error) == MKRT_OK);
  return text;
}

}  // namespace

TEST_CASE("a model writes the same on the simulated GPU as on the host device") {
  REQUIRE(!host::builtin_isas().empty());
  const mkrt_host_isa& llm = *host::builtin_isas().front();
  const test::TemporaryFolder folder;
  std::ofstream(folder.path("mkrt_llm.sm_90.cubin"), std::ios::binary) << FakeImage(llm.fingerprint).bytes();
  compile::Options options{MKRT_TEST_DATA "/novelist", folder.path("package")};
  options.context = 64;
  options.images = {{"sm_90", folder.path("mkrt_llm.sm_90.cubin")}};
  compile::compile_model(options);

  DriverDouble gpu;
  gpu.add_isa(llm);
  const auto runtime = runtime::create_runtime(nullptr, {}, DriverDouble::open);
  const auto program = runtime::load_program(runtime, options.output.c_str());
  const Text expected = continue_prompt(program, MKRT_DEVICE_HOST, MKRT_QUEUE_DYNAMIC);
  CHECK(std::any_of(expected.logits.begin(), expected.logits.end(), [](float logit) { return logit != 0; }));
  for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
    CHECK(continue_prompt(program, MKRT_DEVICE_CUDA, mode) == expected);
  }
  CHECK(gpu.launches().size() == 2);
}
