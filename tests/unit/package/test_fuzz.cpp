// Deterministic damage to valid packages: whatever is read, it is read whole or refused with a status, never a crash.
#include <algorithm>
#include <random>

#include "package_fixture.hpp"

using namespace mkrt::package;
using mkrt::test::failure_of;
using mkrt::test::PackageFixture;

namespace {

// Statuses that reading may end with.
bool is_refusal(const mkrt::base::Failure& failure) {
  return failure.status() == MKRT_ERROR_FORMAT || failure.status() == MKRT_ERROR_FILE ||
         failure.status() == MKRT_ERROR_UNSUPPORTED;
}

constexpr size_t weight_bytes = 256;  // of the fixture's weight file, behind its header

// Flips bits of one byte of a file in place.
void flip(const std::string& path, size_t at, int bits) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ bits));
}

// Reads all bytes that a file's tensors claim to have, so that a wrong offset touches memory that is not there.
uint64_t sum_of_bytes(const SafetensorsFile& file) {
  uint64_t sum = 0;
  for (const auto& tensor : file.tensors()) {
    for (const std::byte byte : tensor.view.bytes) sum += std::to_integer<uint64_t>(byte);
  }
  return sum;
}

void check_survives(const mkrt::base::Failure& failure) {
  const bool fine = failure.status() == MKRT_OK || is_refusal(failure);
  if (!fine || failure.message().size() >= sizeof(mkrt_error::message)) FAIL_CHECK(failure.message());
}

}  // namespace

TEST_CASE("a program.json that is cut anywhere is refused") {
  const PackageFixture fixture;
  const std::string text = fixture.program.dump();
  for (size_t size = 0; size < text.size(); ++size) {
    const auto failure = failure_of([&] { (void)fixture.read_text(std::string_view(text).substr(0, size)); });
    if (failure.status() != MKRT_ERROR_FORMAT) FAIL_CHECK("cut after ", size, ": ", failure.message());
  }
}

TEST_CASE("a program.json with any byte replaced is read or refused") {
  const PackageFixture fixture;
  const std::string text = fixture.program.dump();
  for (size_t at = 0; at < text.size(); ++at) {
    for (const char byte : {'\0', '\xff', '"', '9', '-', '{', ']', ','}) {
      std::string damaged = text;
      damaged[at] = byte;
      check_survives(failure_of([&] { (void)fixture.read_text(damaged); }));
    }
  }
}

TEST_CASE("a program.json with pieces moved, doubled and taken out is read or refused") {
  const PackageFixture fixture;
  const std::string text = fixture.program.dump();
  std::mt19937 random(20261130);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random() % limit); };
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = text;
    for (size_t changes = 1 + below(3); changes > 0; --changes) {
      const std::string piece = text.substr(below(text.size()), below(60));
      const size_t at = below(damaged.size());
      damaged.replace(at, std::min(below(60), damaged.size() - at), piece);
    }
    check_survives(failure_of([&] { (void)fixture.read_text(damaged); }));
  }
}

TEST_CASE("numbers at the edges of their types anywhere in program.json are read or refused") {
  const PackageFixture fixture;
  const std::string text = fixture.program.dump();
  const char* numbers[] = {"-1",
                           "0",
                           "2147483647",
                           "2147483648",
                           "4294967295",
                           "4294967296",
                           "9223372036854775807",
                           "9223372036854775808",
                           "18446744073709551615",
                           "18446744073709551616",
                           "-9223372036854775808",
                           "1e308",
                           "-0.0"};
  for (size_t at = 0; at < text.size(); ++at) {
    const bool starts_number = text[at] >= '0' && text[at] <= '9' && (text[at - 1] == ':' || text[at - 1] == '[');
    if (!starts_number) continue;
    const size_t end = text.find_first_of(",]}", at);
    for (const char* number : numbers) {
      std::string damaged = text;
      damaged.replace(at, end - at, number);
      check_survives(failure_of([&] { (void)fixture.read_text(damaged); }));
    }
  }
}

TEST_CASE("a safetensors file that is cut or damaged anywhere is read or refused") {
  const PackageFixture fixture;
  const std::string path = fixture.folder().file("weights.safetensors");
  uint64_t sum = 0;
  const auto read = [&] { return failure_of([&] { sum += sum_of_bytes(SafetensorsFile(path)); }); };
  const size_t size = std::filesystem::file_size(path);
  for (size_t at = 0; at < size - weight_bytes; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      flip(path, at, 1 << bit);
      check_survives(read());
      flip(path, at, 1 << bit);
    }
  }
  CHECK(read().status() == MKRT_OK);
  CHECK(sum > 0);
  for (size_t cut = size; cut-- > 0;) {
    std::filesystem::resize_file(path, cut);
    if (read().status() != MKRT_ERROR_FORMAT) FAIL_CHECK("cut after ", cut);
  }
}

TEST_CASE("a package with a damaged weight file is read or refused") {
  const PackageFixture fixture;
  const std::string path = fixture.folder().file("weights.safetensors");
  const size_t size = std::filesystem::file_size(path);
  for (size_t at = 0; at < size - weight_bytes; ++at) {
    flip(path, at, 0x10);
    check_survives(failure_of([&] { (void)fixture.read(); }));
    flip(path, at, 0x10);
  }
  CHECK(failure_of([&] { (void)fixture.read(); }).status() == MKRT_OK);
}
