// mkrt.hpp, compiled as C++17.
#include "mkrt/mkrt.hpp"

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "test_package.hpp"

namespace {

using namespace std::chrono_literals;

const test::TestPackage& package() {
  static const test::TestPackage shared;
  return shared;
}

struct Model {
  mkrt::Runtime runtime{package().runtime_desc()};
  mkrt::Mesh mesh{runtime, host_rank()};
  mkrt::Program program{runtime, package().folder.path()};
  mkrt::Executable executable{program, mesh};
  mkrt::Session session{executable};

  static mkrt::RankOptions host_rank() {
    mkrt::RankOptions rank;
    rank.kind = MKRT_DEVICE_HOST;
    rank.worker_count = 2;
    return rank;
  }
};

template <class Call>
mkrt_error error_of(Call&& call) {
  try {
    call();
  } catch (const mkrt::Error& error) {
    CHECK(std::string(error.what()) == error.error().message);
    CHECK(std::string(error.what()).size() > 5);
    CHECK(std::string(error.status_name()) == mkrt_status_name(error.status()));
    return error.error();
  }
  return MKRT_ERROR_INIT;
}

}  // namespace

TEST_CASE("a model runs through the wrapper") {
  Model model;
  const uint32_t x = model.program.find_tensor("x");
  const uint32_t out = model.program.find_tensor(std::string("out"));
  const std::vector<float> input(32, 2.0f);
  model.session.write<float>(x, input);
  mkrt::ExecuteOptions options;
  options.entry = model.program.find_entry("scale");
  options.step_count = 2;
  const uint64_t value = model.session.execute(options);
  model.session.wait(value);
  CHECK(model.session.query() == value);
  std::array<float, 32> result{};
  model.session.read<float>(out, result);
  for (uint32_t i = 0; i < result.size(); ++i) CHECK(result[i] == 2.0f * test::weight_of(i % test::columns));
  CHECK(model.session.read_value<float>(out, 9) == result[9]);
  model.session.write_value<float>(x, 5.0f, 31);
  CHECK(model.session.read_value<float>(x, 31) == 5.0f);
  CHECK(static_cast<float*>(model.session.tensor_address(x))[31] == 5.0f);
  model.session.reset();
  CHECK(model.session.read_value<float>(x, 31) == 0.0f);
}

TEST_CASE("infos are those of the C interface") {
  const Model model;
  const mkrt::ProgramInfo info = model.program.info();
  CHECK(info.rank_count == 1);
  CHECK(info.entry_count == 4);
  CHECK(info.tensor_count == 7);
  CHECK(info.weight_bytes == 32);
  CHECK(info.isa_name == "test.abi");
  CHECK(model.program.entry_info(test::entry_scale).name == "scale");
  CHECK(model.program.record_info(test::entry_scale, 0).label == "first");
  CHECK(model.program.record_info(test::entry_scale, 0).grid[0] == 4);
  const mkrt::TensorInfo tensor = model.program.tensor_info(test::tensor_sum);
  CHECK(tensor.name == "sum");
  CHECK(tensor.kind == MKRT_TENSOR_STATE);
  REQUIRE(tensor.dimensions().size() == 2);
  CHECK(tensor.dimensions()[1] == 8);
  CHECK(model.program.metadata("author") == "tests/abi");
  CHECK(model.mesh.rank_count() == 1);
  CHECK(model.mesh.device_info().worker_count == 2);
  CHECK(model.runtime.device_info(model.runtime.device_count() - 1).kind == MKRT_DEVICE_HOST);
  CHECK(mkrt::library_version() == MKRT_VERSION);
}

TEST_CASE("failures are exceptions that carry the whole error") {
  Model model;
  CHECK(error_of([&] { mkrt::Program(model.runtime, "no such folder"); }).status == MKRT_ERROR_FILE);
  CHECK(error_of([&] { model.program.find_tensor("no such tensor"); }).status == MKRT_ERROR_NOT_FOUND);
  CHECK(error_of([&] { model.session.read_value<float>(test::tensor_x, 32); }).status == MKRT_ERROR_ARGUMENT);
  CHECK(error_of([&] { model.session.read_value<float>(test::tensor_x, UINT64_MAX / 4 + 1); }).status ==
        MKRT_ERROR_ARGUMENT);
  model.session.write_value<int32_t>(test::tensor_value, -3);
  mkrt::ExecuteOptions options;
  options.entry = test::entry_check;
  const uint64_t value = model.session.execute(options);
  const mkrt_error fault = error_of([&] { model.session.wait(value); });
  CHECK(fault.status == MKRT_ERROR_FAULT);
  CHECK(fault.record == 0);
}

TEST_CASE("waiting with a limit tells whether it passed, and cancel ends the work") {
  Model model;
  mkrt::ExecuteOptions options;
  options.entry = test::entry_sum;
  options.step_count = UINT32_MAX;
  const uint64_t value = model.session.execute(options);
  CHECK_FALSE(model.session.wait_for(value, 1ms));
  CHECK_FALSE(model.session.wait_for(value, -1ms));
  model.session.cancel();
  CHECK(error_of([&] { model.session.wait(value); }).status == MKRT_ERROR_CANCELLED);
  model.session.reset();
  CHECK(model.session.wait_for(model.session.execute(), 10s));
}

TEST_CASE("handles move, close, and are empty afterwards") {
  static_assert(!std::is_copy_constructible_v<mkrt::Session> && !std::is_copy_assignable_v<mkrt::Session>);
  static_assert(std::is_nothrow_move_constructible_v<mkrt::Session> && std::is_nothrow_move_assignable_v<mkrt::Mesh>);
  mkrt::Session empty;
  CHECK_FALSE(empty);
  CHECK(error_of([&] { empty.query(); }).status == MKRT_ERROR_HANDLE);
  mkrt::Session kept;
  {
    Model model;
    kept = std::move(model.session);
    CHECK_FALSE(model.session);
    mkrt::Program moved(std::move(model.program));
    CHECK(moved);
  }
  CHECK(kept.wait_for(kept.execute(), 10s));
  mkrt_session* const raw = kept.release();
  CHECK_FALSE(kept);
  mkrt::Session adopted(raw);
  CHECK(adopted.wait_for(adopted.execute(), 10s));
  adopted.close();
  adopted.close();
  CHECK_FALSE(adopted);
}

TEST_CASE("spans are made of what holds elements, and of nothing else") {
  std::vector<float> vector(3);
  const std::array<float, 2> array{};
  float raw[4] = {};
  CHECK(mkrt::Span<float>(vector).size() == 3);
  CHECK(mkrt::Span<const float>(vector).data() == vector.data());
  CHECK(mkrt::Span<const float>(array).size_bytes() == 8);
  CHECK(mkrt::Span<float>(raw).size() == 4);
  CHECK(mkrt::Span<const float>(mkrt::Span<float>(raw)).data() == raw);
  CHECK(mkrt::Span<float>().empty());
  static_assert(!std::is_constructible_v<mkrt::Span<float>, const std::vector<float>&>);
  static_assert(!std::is_constructible_v<mkrt::Span<const float>, const std::vector<double>&>);
  static_assert(!std::is_constructible_v<mkrt::Span<const float>, const std::vector<int32_t>&>);
}

TEST_CASE("what only GPUs do is refused by host devices, and threads for loading are taken") {
  Model model;
  CHECK(error_of([&] { model.session.trace(4); }).status == MKRT_ERROR_UNSUPPORTED);
  std::vector<mkrt_trace_tile> tiles(4);
  CHECK(error_of([&] { model.session.read_trace(0, tiles); }).status == MKRT_ERROR_UNSUPPORTED);
  const mkrt::Executable loaded(model.program, model.mesh, 0, MKRT_MAX_LOADER_THREADS);
  CHECK(loaded);
  CHECK(error_of([&] { mkrt::Executable(model.program, model.mesh, 0, MKRT_MAX_LOADER_THREADS + 1); }).status ==
        MKRT_ERROR_ARGUMENT);
  mkrt_device_memory_extension memory{};
  memory.base.struct_size = sizeof(memory);
  memory.base.type = MKRT_EXTENSION_DEVICE_MEMORY;
  memory.allocate = [](void*, uint32_t, uint64_t, uint64_t) { return uint64_t{0}; };
  memory.release = [](void*, uint32_t, uint64_t, uint64_t) {};
  const mkrt::RankOptions rank = Model::host_rank();
  CHECK(error_of([&] {
          mkrt::Mesh(model.runtime, mkrt::Span<const mkrt::RankOptions>(&rank, 1), &memory.base);
        }).status == MKRT_ERROR_UNSUPPORTED);
}
