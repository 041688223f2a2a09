// The kernel that measures a GPU's read limit keeps what every kernel promises.
#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/device_read_limit.hpp"
#include "cli/read_package.hpp"
#include "gpu.hpp"
#include "kernel_images.hpp"

namespace {

using namespace mkrt;
using namespace mkrt::test;

constexpr uint64_t bytes = uint64_t{1} << 28;

std::vector<RankOptions> ranks_of_gpu(uint32_t count) {
  RankOptions rank;
  rank.kind = MKRT_DEVICE_CUDA;
  return std::vector<RankOptions>(count, rank);
}

// A session that reads 256 MB a step on each rank, with the package that the tool writes.
struct Reader {
  explicit Reader(uint32_t ranks = 1) : mesh(runtime, ranks_of_gpu(ranks)) {
    cli::write_read_package(folder.path(), bytes, ranks, kernel_images("mkrt_read"));
  }
  void load() {
    executable = Executable(Program(runtime, folder.path()), mesh);
    session = Session(executable);
  }

  TemporaryFolder folder;
  Runtime runtime;
  Mesh mesh;
  Executable executable;
  Session session;
};

}  // namespace

TEST_CASE("reads end in both queue modes, on any number of SMs and ranks, one execute after the other") {
  for (const uint32_t ranks : {1, 2}) {
    Reader reader(ranks);
    reader.load();
    for (const uint32_t workers : {0, 1}) {
      for (const uint32_t queue_mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC, MKRT_QUEUE_DYNAMIC}) {
        ExecuteOptions options;
        options.queue_mode = queue_mode;
        options.worker_limit = workers;
        options.step_count = 3;
        reader.session.wait(reader.session.execute(options));
      }
    }
  }
}

TEST_CASE("a read limit is a rate that memory can have: more than a slow card's, less than any cache's") {
  cli::DeviceReadLimit limit(ranks_of_gpu(1), kernel_images("mkrt_read"));
  const double rate = limit.measure();
  MESSAGE("read limit " << rate / 1e9 << " GB/s");
  CHECK(rate > 50e9);
  CHECK(rate < 20e12);
}

TEST_CASE("a read of minutes is cancelled soon") {
  Reader reader;
  reader.load();
  ExecuteOptions options;
  options.step_count = 1 << 20;
  const uint64_t value = reader.session.execute(options);
  CHECK(!reader.session.wait_for(value, std::chrono::milliseconds(50)));
  const auto begin = std::chrono::steady_clock::now();
  reader.session.cancel();
  CHECK(error_of([&] { reader.session.wait(value); }).status == MKRT_ERROR_CANCELLED);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(1));
  reader.session.reset();
  reader.session.wait(reader.session.execute());
}

TEST_CASE("a schedule whose tiles signal is refused by the kernel, not run without its order") {
  Reader reader;
  const std::string path = reader.folder.path("program.json");
  auto program = nlohmann::ordered_json::parse(std::ifstream(path));
  using nlohmann::ordered_json;
  ordered_json& entry = program["entries"][0];
  entry["counters"] = ordered_json::array({ordered_json::object({{"name", "done"}, {"size", 1}})});
  entry["records"][0]["signal"] = ordered_json::array({"done"});
  std::ofstream(path) << program.dump();
  reader.load();
  const mkrt_error error = error_of([&] { reader.session.wait(reader.session.execute()); });
  CHECK(error.status == MKRT_ERROR_FAULT);
  CHECK(contains(error.message, "waits and signals have no meaning here"));
}
