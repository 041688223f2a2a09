#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "base/failure.hpp"
#include "cli/error.hpp"
#include "cli/read_package.hpp"
#include "package/reader.hpp"
#include "verify/verify.hpp"

namespace {

namespace fs = std::filesystem;

struct Folder {
  Folder() : path(fs::temp_directory_path() / ("mkrt-read-package-" + std::to_string(std::random_device{}()))) {
    fs::create_directory(path);
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

}  // namespace

using namespace mkrt;

TEST_CASE(
    "the package that measures a read limit keeps what a schedule promises, and its tiles read all of its tensor") {
  for (const uint32_t ranks : {1U, 3U}) {
    const Folder folder;
    std::ofstream(folder.path / "image") << "no image";
    cli::write_read_package(folder.path, 1 << 28, ranks, {{"sm_90a", (folder.path / "image").string()}});
    package::Program program = package::read_package(folder.path.string());
    verify::check(program);
    CHECK(program.isa.name == "mkrt.read");
    CHECK(program.rank_count == ranks);
    REQUIRE(program.images.size() == 1);
    CHECK(program.images[0].target == "sm_90a");
    std::string image;
    std::getline(std::ifstream(folder.path / program.images[0].file), image);
    CHECK(image == "no image");
    const package::Record& record = program.entries.at(0).records.at(0);
    const package::Operand& data = record.operands.at(0).value();
    CHECK(data.size * 4 * record.grid[0] == 1 << 28);
    CHECK(data.strides[0] == data.size);
    CHECK(data.size * 4 % 16 == 0);  // the kernel leaves out what is no whole piece of 16 bytes
    CHECK(record.waits.empty());
    CHECK(record.signals.empty());
  }
}

TEST_CASE("a read package that cannot be written says where") {
  const Folder folder;
  CHECK_THROWS_WITH_AS(cli::write_read_package(folder.path / "none", 1 << 28, 1, {}), doctest::Contains("program.json"),
                       cli::Error);
  CHECK_THROWS_WITH_AS(cli::write_read_package(folder.path / "none", 1 << 28, 1, {{"sm_90a", "x"}}),
                       doctest::Contains("mkrt.read.sm_90a.cubin"), cli::Error);
}
