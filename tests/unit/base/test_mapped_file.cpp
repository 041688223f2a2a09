#include <cstring>
#include <string>
#include <utility>

#include "base/mapped_file.hpp"
#include "test_support.hpp"

#ifndef _WIN32
#include <sys/stat.h>
#endif

using mkrt::base::MappedFile;
using mkrt::test::TemporaryFolder;

namespace {

std::string text_of(const MappedFile& file) {
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace

TEST_CASE("a mapped file has the file's bytes, and may be moved and prefetched") {
  const TemporaryFolder folder;
  std::string content(100'000, 'a');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 % 251);
  folder.write("data", content);
  MappedFile file(folder.file("data"));
  CHECK(file.path() == folder.file("data"));
  CHECK(text_of(file) == content);
  const void* address = file.bytes().data();
  MappedFile moved(std::move(file));
  CHECK(moved.bytes().data() == address);
  moved.prefetch(moved.bytes().subspan(5000, 20'000));
  moved.prefetch({});
  folder.write("other", "other");
  moved = MappedFile(folder.file("other"));
  CHECK(text_of(moved) == "other");
}

TEST_CASE("a mapped file is read without being touched through the mapping") {
  const TemporaryFolder folder;
  std::string content(3'000'001, 'a');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 37 % 253);
  folder.write("data", content);
  const MappedFile file(folder.file("data"));
  const auto read = [](const MappedFile& from, size_t offset, size_t size) {
    std::string out(size + 1, '!');
    from.read(from.bytes().subspan(offset, size), reinterpret_cast<std::byte*>(out.data()));
    CHECK(out.back() == '!');
    out.pop_back();
    return out;
  };
  CHECK(read(file, 0, content.size()) == content);
  CHECK(read(file, 4097, 2'000'000) == content.substr(4097, 2'000'000));
  CHECK(read(file, content.size() - 1, 1) == content.substr(content.size() - 1));
  CHECK(read(file, 100, 0).empty());
#ifndef _WIN32  // which lets nobody shorten a mapped file
  std::filesystem::resize_file(folder.file("data"), 1'000'000);
  CHECK(read(file, 0, 1'000'000) == content.substr(0, 1'000'000));
  CHECK_FAILURE(read(file, 999'999, 2), MKRT_ERROR_FILE, folder.file("data"), "ends at byte 1000000 or before",
                "had 3000001 bytes");
  CHECK_FAILURE(read(file, 2'000'000, 1'000'001), MKRT_ERROR_FILE, folder.file("data"), "ends at byte 2000000");
#endif
}

TEST_CASE("an empty file maps to nothing") {
  const TemporaryFolder folder;
  folder.write("empty", "");
  CHECK(MappedFile(folder.file("empty")).bytes().empty());
}

TEST_CASE("what is no readable file is refused with its path and the reason") {
  const TemporaryFolder folder;
  CHECK_FAILURE(MappedFile(folder.file("missing")), MKRT_ERROR_FILE, folder.file("missing"), "cannot be opened");
  CHECK_FAILURE(MappedFile(folder.path()), MKRT_ERROR_FILE, folder.path(), "cannot be read");
  CHECK_FAILURE(MappedFile(""), MKRT_ERROR_FILE, "cannot be opened");
  CHECK_FAILURE(MappedFile(std::string("a\0b", 3)), MKRT_ERROR_FILE, "cannot be opened");
  CHECK_FAILURE(MappedFile(std::string(100'000, 'x')), MKRT_ERROR_FILE, "cannot be opened");
}

#ifndef _WIN32
TEST_CASE("links in a circle, pipes and devices are refused without waiting") {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("second", folder.file("first"));
  std::filesystem::create_symlink("first", folder.file("second"));
  CHECK_FAILURE(MappedFile(folder.file("first")), MKRT_ERROR_FILE, folder.file("first"), "cannot be opened");
  REQUIRE(mkfifo(folder.file("pipe").c_str(), 0600) == 0);
  CHECK_FAILURE(MappedFile(folder.file("pipe")), MKRT_ERROR_FILE, folder.file("pipe"), "is not a regular file");
  CHECK_FAILURE(MappedFile("/dev/zero"), MKRT_ERROR_FILE, "/dev/zero", "is not a regular file");
}
#endif
