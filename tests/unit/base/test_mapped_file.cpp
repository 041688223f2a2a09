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
