#include "package/safetensors.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/checked.hpp"
#include "base/failure.hpp"
#include "package/json.hpp"
#include "package/program.hpp"

namespace mkrt::package {

namespace {

using base::text;

// The format's own limit for headers.
constexpr uint64_t max_header_bytes = 100'000'000;
constexpr size_t length_bytes = 8;
// Model files have at most 5 or so; the limit keeps shapes small whatever the header says.
constexpr size_t max_dimensions = 32;

constexpr std::array<std::pair<std::string_view, uint64_t>, 17> dtype_sizes{{{"F32", 4},
                                                                             {"F16", 2},
                                                                             {"BF16", 2},
                                                                             {"I32", 4},
                                                                             {"U32", 4},
                                                                             {"U8", 1},
                                                                             {"I8", 1},
                                                                             {"BOOL", 1},
                                                                             {"F8_E4M3", 1},
                                                                             {"F8_E5M2", 1},
                                                                             {"F8_E8M0", 1},
                                                                             {"I16", 2},
                                                                             {"U16", 2},
                                                                             {"F64", 8},
                                                                             {"I64", 8},
                                                                             {"U64", 8},
                                                                             {"C64", 8}}};

const std::pair<std::string_view, uint64_t>* find_dtype_size(std::string_view name) noexcept {
  const auto it = std::find_if(dtype_sizes.begin(), dtype_sizes.end(),
                               [&](const auto& candidate) { return candidate.first == name; });
  return it == dtype_sizes.end() ? nullptr : &*it;
}

// Builds the tensors of a header's members.
class HeaderReader : public JsonVisitor {
 public:
  HeaderReader(const std::string& file, std::span<const std::byte> data) : file_(file), data_(data) {}

  std::vector<SafetensorsFile::Named> take() { return std::move(tensors_); }

  void member(const JsonPath&, std::string_view) override {}
  bool descend(const JsonPath& path, bool is_object) override { return path.empty() && is_object; }
  void leave(const JsonPath&) override {}
  void value(const JsonPath& path, const Json& value) override {
    const JsonOrigin origin{file_, json_pointer(path), -1, ""};
    const JsonView view(value, origin);
    if (path.empty()) view.expect_object();
    if (path[0].key == "__metadata__") {
      view.each_member([](const std::string&, const JsonView& text) { text.string(0, SIZE_MAX); });
    } else {
      tensors_.push_back({path[0].key, read_tensor(view)});
    }
  }

 private:
  SafetensorsView read_tensor(const JsonView& view) const {
    view.expect_members({"dtype", "shape", "data_offsets"});
    SafetensorsView out;
    const JsonView dtype = view.member("dtype");
    const auto* known = find_dtype_size(dtype.string(0, SIZE_MAX));
    if (known == nullptr) dtype.fail(text(base::quoted(dtype.string(0, SIZE_MAX)), " is not a dtype"));
    out.dtype = known->first;
    out.shape = read_shape(view.member("shape"));
    out.bytes = read_bytes(view, out.shape, known->second);
    return out;
  }

  static std::vector<uint64_t> read_shape(const JsonView& view) {
    view.expect_array(0, max_dimensions);
    std::vector<uint64_t> out;
    view.each_element([&](const JsonView& size) { out.push_back(size.unsigned_integer(0, max_count)); });
    return out;
  }

  std::span<const std::byte> read_bytes(const JsonView& view, const std::vector<uint64_t>& shape,
                                        uint64_t element_size) const {
    uint64_t size = element_size;
    for (const uint64_t dimension : shape) {
      if (!base::checked_multiply(size, dimension)) view.member("shape").fail("has more than 63 bits of bytes");
    }
    const JsonView offsets = view.member("data_offsets");
    offsets.expect_array(2, 2);
    const uint64_t begin = offsets.element(0).unsigned_integer(0, max_count);
    const uint64_t end = offsets.element(1).unsigned_integer(0, max_count);
    if (begin > end || end > data_.size()) {
      offsets.fail(
          text("the bytes ", begin, " to ", end, " do not lie in the file's ", data_.size(), " bytes of data"));
    }
    if (end - begin != size) {
      offsets.fail(text("has ", end - begin, " bytes, dtype and shape need ", size));
    }
    return data_.subspan(begin, end - begin);
  }

  const std::string& file_;
  std::span<const std::byte> data_;
  std::vector<SafetensorsFile::Named> tensors_;
};

[[noreturn]] void fail(const std::string& file, std::string_view message) {
  throw base::Failure(MKRT_ERROR_FORMAT, text(base::shown_path(file), ": ", message));
}

uint64_t header_size(const base::MappedFile& file) {
  const auto bytes = file.bytes();
  if (bytes.size() < length_bytes) fail(file.path(), "is too short for a safetensors file");
  uint64_t size = 0;
  for (size_t i = 0; i < length_bytes; ++i) size |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  if (size > max_header_bytes) fail(file.path(), text("its header of ", size, " bytes is larger than 100 MB"));
  if (size > bytes.size() - length_bytes) {
    fail(file.path(), text("ends inside its header of ", size, " bytes"));
  }
  return size;
}

// The format allows neither gaps nor overlaps between tensors.
void check_layout(const std::string& file, const std::vector<SafetensorsFile::Named>& tensors,
                  std::span<const std::byte> data) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto begin = [&](size_t i) { return tensors[i].view.bytes.data() - data.data(); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(begin(a), tensors[a].view.bytes.size()) < std::pair(begin(b), tensors[b].view.bytes.size());
  });
  uint64_t end = 0;
  for (const size_t i : order) {
    const auto start = static_cast<uint64_t>(begin(i));
    if (start != end) {
      fail(file, text("tensor ", base::quoted(tensors[i].name), start < end ? " overlaps" : " leaves a gap after",
                      " the tensor before it: it starts at byte ", start, " instead of ", end));
    }
    end = start + tensors[i].view.bytes.size();
  }
  if (end != data.size()) {
    fail(file, text("has ", data.size(), " bytes of data, its tensors need ", end));
  }
}

}  // namespace

std::string_view safetensors_dtype(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::f32: return "F32";
    case Dtype::f16: return "F16";
    case Dtype::bf16: return "BF16";
    case Dtype::i32: return "I32";
    case Dtype::u32: return "U32";
    case Dtype::u8: return "U8";
  }
  return "?";
}

uint64_t safetensors_dtype_size(std::string_view dtype) noexcept {
  const auto* known = find_dtype_size(dtype);
  return known == nullptr ? 0 : known->second;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const uint64_t size = header_size(file_);
  const auto header = file_.bytes().subspan(length_bytes, size);
  const auto data = file_.bytes().subspan(length_bytes + size);
  if (size == 0 || header[0] != std::byte{'{'}) fail(path, "its header is not a JSON object");
  HeaderReader reader(path, data);
  parse_json({reinterpret_cast<const char*>(header.data()), header.size()}, path, reader);
  tensors_ = reader.take();
  check_layout(path, tensors_, data);
  std::sort(tensors_.begin(), tensors_.end(), [](const Named& a, const Named& b) { return a.name < b.name; });
}

const SafetensorsView* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const Named& tensor, std::string_view key) { return tensor.name < key; });
  return it != tensors_.end() && it->name == name ? &it->view : nullptr;
}

}  // namespace mkrt::package
