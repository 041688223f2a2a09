#include "package/reader.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/checked.hpp"
#include "base/failure.hpp"
#include "base/mapped_file.hpp"
#include "base/path.hpp"
#include "package/isa.hpp"
#include "package/json.hpp"
#include "package/name_index.hpp"
#include "package/record_reader.hpp"

namespace mkrt::package {

namespace {

using base::system_path;
using base::text;

constexpr uint64_t format_version = 1;
constexpr size_t max_metadata_bytes = 65536;
constexpr size_t max_target_bytes = 31;  // mkrt_device_info.target has 32 with the zero
constexpr std::array<std::string_view, 9> program_members{"format",   "version", "ranks",   "isa",    "images",
                                                          "metadata", "weights", "tensors", "entries"};
constexpr std::array<std::string_view, 3> entry_members{"name", "counters", "records"};

// Members that a file must have in a fixed order.
class OrderedMembers {
 public:
  explicit OrderedMembers(std::span<const std::string_view> names) : names_(names) {}

  void begin() { next_ = 0; }
  // The parser has refused members that are there twice.
  void accept(const JsonView& object, std::string_view name) {
    if (next_ < names_.size() && name == names_[next_]) {
      ++next_;
      return;
    }
    if (std::find(names_.begin(), names_.end(), name) == names_.end()) {
      object.fail(text("has an unknown member ", base::quoted(name)));
    }
    assert(next_ < names_.size());
    object.fail(text("has the member ", base::quoted(name), " where ", base::quoted(names_[next_]), " must be"));
  }
  void end(const JsonView& object) const {
    if (next_ < names_.size()) object.fail(text("lacks the member ", base::quoted(names_[next_])));
  }

 private:
  std::span<const std::string_view> names_;
  size_t next_ = 0;
};

/* ---- weights ---------------------------------------------------------------------------------------------------- */

// Every tensor of all weight files by name.
class WeightIndex {
 public:
  void add(const SafetensorsFile& file) {
    for (const SafetensorsFile::Named& tensor : file.tensors()) {
      const auto [it, is_new] = tensors_.try_emplace(tensor.name, Place{&tensor.view, &file, nullptr});
      if (!is_new) it->second.other_file = &file;
    }
  }

  // The tensor of that name, which must be in exactly one file and be as `tensor` declares.
  const SafetensorsView& find(const JsonView& view, const std::string& source, const Tensor& tensor) const {
    const auto it = tensors_.find(source);
    if (it == tensors_.end()) view.fail(text("no weight file has a tensor ", base::quoted(source)));
    const Place& place = it->second;
    if (place.other_file != nullptr) {
      view.fail(text("both ", base::shown_path(place.file->path()), " and ", base::shown_path(place.other_file->path()),
                     " have a tensor ", base::quoted(source)));
    }
    check(view, source, *place.view, tensor);
    return *place.view;
  }

 private:
  struct Place {
    const SafetensorsView* view;
    const SafetensorsFile* file;
    const SafetensorsFile* other_file;  // that has the same name, if any
  };

  static void check(const JsonView& view, const std::string& source, const SafetensorsView& found,
                    const Tensor& tensor) {
    if (found.dtype != safetensors_dtype(tensor.dtype)) {
      view.fail(text(base::quoted(source), " has dtype ", found.dtype, " in its file, not ",
                     safetensors_dtype(tensor.dtype)));
    }
    if (found.shape != tensor.shape) view.fail(text(base::quoted(source), " has another shape in its file"));
    // Host ranks compute on the mapped bytes in place.
    if (reinterpret_cast<uintptr_t>(found.bytes.data()) % dtype_size(tensor.dtype) != 0) {
      view.fail(text(base::quoted(source), " does not start at a multiple of its element size in its file"));
    }
  }

  std::unordered_map<std::string_view, Place> tensors_;  // names live in the files
};

// `source` for one rank.
std::string source_name(const std::string& source, uint32_t rank) {
  constexpr std::string_view marker = "{rank}";
  std::string out = source;
  const std::string number = std::to_string(rank);
  for (size_t at = out.find(marker); at != std::string::npos; at = out.find(marker, at + number.size())) {
    out.replace(at, marker.size(), number);
  }
  return out;
}

/* ---- program.json ----------------------------------------------------------------------------------------------- */

// Builds a Program of the values of program.json, in the order in which the parser meets them.
class ProgramReader : public JsonVisitor {
 public:
  ProgramReader(std::string folder, std::string file) : folder_(std::move(folder)), file_(std::move(file)) {
    program_.path = folder_;
  }

  Program take() { return std::move(program_); }

  void member(const JsonPath& object, std::string_view key) override {
    const JsonOrigin origin = origin_of(object);
    (object.empty() ? program_order_ : entry_order_).accept(JsonView(no_value_, origin), key);
  }

  bool descend(const JsonPath& path, bool is_object) override {
    switch (path.size()) {
      case 0: return is_object;
      case 1:
        return !is_object && (path[0].key == "images" || path[0].key == "weights" || path[0].key == "tensors" ||
                              path[0].key == "entries");
      case 2: return path[0].key == "entries" && is_object && begin_entry();
      case 3: return !is_object && (path[2].key == "counters" || path[2].key == "records");
      default: return false;
    }
  }

  void value(const JsonPath& path, const Json& value) override {
    JsonOrigin origin = origin_of(path);
    if (path.size() == 4 && path[2].key == "records") note_record(path, value, origin);
    const JsonView view(value, origin);
    switch (path.size()) {
      case 0: view.expect_object(); break;
      case 1: read_program_member(path[0].key, view); break;
      case 2: read_element(path[0].key, view); break;
      case 3: read_entry_member(path[2].key, view); break;
      default: path[2].key == "counters" ? read_counters(view) : add_record(view);
    }
  }

  void leave(const JsonPath& path) override {
    const JsonOrigin origin = origin_of(path);
    const JsonView view(no_value_, origin);
    if (path.empty()) program_order_.end(view);
    if (path.size() == 1 && path[0].key == "entries" && program_.entries.empty()) view.fail("must not be empty");
    if (path.size() == 2) entry_order_.end(view);
    if (path.size() == 3 && path[2].key == "records" && entry().records.empty()) view.fail("must not be empty");
  }

 private:
  JsonOrigin origin_of(const JsonPath& path) const { return {file_, json_pointer(path), -1, ""}; }

  static void note_record(const JsonPath& path, const Json& value, JsonOrigin& origin) {
    origin.record = static_cast<int32_t>(std::min<uint64_t>(path[3].index, INT32_MAX));
    const auto label = value.is_object() ? value.find("label") : value.end();
    if (label != value.end() && label->is_string()) origin.label = label->get<std::string>();
  }

  Entry& entry() { return program_.entries.back(); }

  void read_program_member(std::string_view key, const JsonView& view) {
    if (key == "format") {
      if (view.string(0, SIZE_MAX) != "mkrt.program") view.fail("must be \"mkrt.program\"");
    } else if (key == "version") {
      const uint64_t version = view.unsigned_integer(0, max_count);
      if (version != format_version) {
        view.fail(text("version ", version, " is not supported, only ", format_version), MKRT_ERROR_UNSUPPORTED);
      }
    } else if (key == "ranks") {
      program_.rank_count = static_cast<uint32_t>(view.unsigned_integer(1, MKRT_MAX_RANKS));
    } else if (key == "isa") {
      read_isa_member(view);
    } else if (key == "metadata") {
      read_metadata(view);
    } else {
      view.expect_array();  // an array would have been descended into
      assert(false);
    }
  }

  void read_isa_member(const JsonView& view) {
    program_.isa = parse_isa(view);
    for (size_t i = 0; i < program_.isa.opcodes.size(); ++i) {
      opcodes_.insert(program_.isa.opcodes[i].name, static_cast<uint32_t>(i));
    }
  }

  void read_metadata(const JsonView& view) {
    view.each_member([&](const std::string& key, const JsonView& value) {
      if (key.empty() || key.size() > max_name_bytes || key.find('\0') != std::string::npos) {
        view.fail(text("key ", base::quoted(key), " must have 1 to ", max_name_bytes, " bytes and no NUL character"));
      }
      program_.metadata.push_back({key, value.string(0, max_metadata_bytes)});
    });
  }

  void read_element(std::string_view key, const JsonView& view) {
    if (key == "images") {
      read_image(view);
    } else if (key == "weights") {
      read_weight_file(view);
    } else if (key == "tensors") {
      read_tensor(view);
    } else {
      view.expect_object();  // an entry; an object would have been descended into
      assert(false);
    }
  }

  /* ---- files ---- */

  // A file name that cannot leave the folder, on any system.
  static const std::string& file_name(const JsonView& view) {
    const std::string& name = view.name();
    bool valid = name.find_first_of("\\:") == std::string::npos;
    for (size_t start = 0; valid && start <= name.size();) {
      const size_t end = std::min(name.find('/', start), name.size());
      const std::string_view part = std::string_view(name).substr(start, end - start);
      valid = !part.empty() && part != "." && part != "..";
      start = end + 1;
    }
    if (!valid) view.fail(text(base::quoted(name), " is not a path inside the package's folder"));
    return name;
  }

  void read_image(const JsonView& view) {
    view.expect_members({"target", "file"});
    Image image{view.member("target").string(1, max_target_bytes), file_name(view.member("file"))};
    if (!targets_.insert(image.target, 0)) view.fail(text("target ", base::quoted(image.target), " is there twice"));
    std::error_code error;
    if (!std::filesystem::is_regular_file(system_path(folder_ + '/' + image.file), error)) {
      view.member("file").fail(text("file ", base::quoted(image.file), " does not exist in the package"),
                               MKRT_ERROR_FILE);
    }
    program_.images.push_back(std::move(image));
  }

  void read_weight_file(const JsonView& view) {
    const std::string& name = file_name(view);
    if (!weight_names_.insert(name, 0)) view.fail(text("file ", base::quoted(name), " is there twice"));
    program_.weight_files.push_back(std::make_shared<const SafetensorsFile>(folder_ + '/' + name));
    weights_.add(*program_.weight_files.back());
  }

  /* ---- tensors ---- */

  void read_tensor(const JsonView& view) {
    view.expect_members({"name", "dtype", "shape", "kind"}, {"source"});
    Tensor out;
    out.name = view.member("name").name();
    const JsonView dtype = view.member("dtype");
    const auto known = find_dtype(dtype.string(0, SIZE_MAX));
    if (!known) dtype.fail(text(base::quoted(dtype.string(0, SIZE_MAX)), " is not a dtype"));
    out.dtype = *known;
    out.kind = read_kind(view.member("kind"));
    read_shape(view.member("shape"), out);
    read_sources(view, out);
    if (!tensors_.insert(out.name, static_cast<uint32_t>(program_.tensors.size()))) {
      view.fail(text("tensor ", base::quoted(out.name), " is there twice"));
    }
    program_.tensors.push_back(std::move(out));
  }

  static uint32_t read_kind(const JsonView& view) {
    const std::string& kind = view.string(0, SIZE_MAX);
    if (kind == "weight") return MKRT_TENSOR_WEIGHT;
    if (kind == "state") return MKRT_TENSOR_STATE;
    if (kind == "input") return MKRT_TENSOR_INPUT;
    if (kind == "output") return MKRT_TENSOR_OUTPUT;
    if (kind == "scratch") return MKRT_TENSOR_SCRATCH;
    view.fail(text(base::quoted(kind), " is not \"weight\", \"state\", \"input\", \"output\" or \"scratch\""));
  }

  void read_shape(const JsonView& view, Tensor& out) {
    view.expect_array(1, MKRT_MAX_DIMENSIONS);
    out.elements = 1;
    view.each_element([&](const JsonView& dimension) {
      out.shape.push_back(dimension.unsigned_integer(1, max_count));
      if (!base::checked_multiply(out.elements, out.shape.back())) view.fail("has more than 63 bits of elements");
    });
    out.size_bytes = out.elements;
    if (!base::checked_multiply(out.size_bytes, dtype_size(out.dtype))) view.fail("has more than 63 bits of bytes");
    if (!base::checked_add(rank_bytes_, out.size_bytes) || rank_bytes_ > max_rank_bytes) {
      view.fail("makes the tensors of a rank together larger than 2^62 bytes");
    }
  }

  void read_sources(const JsonView& view, Tensor& out) const {
    const auto source = view.find("source");
    if (out.kind != MKRT_TENSOR_WEIGHT) {
      if (source) source->fail("is only for weights");
      return;
    }
    if (!source) view.fail("lacks the member \"source\"");
    for (uint32_t rank = 0; rank < program_.rank_count; ++rank) {
      out.sources.push_back(weights_.find(*source, source_name(source->name(), rank), out));
    }
  }

  /* ---- entries ---- */

  bool begin_entry() {
    program_.entries.emplace_back();
    counters_.clear();
    entry_order_.begin();
    return true;
  }

  void read_entry_member(std::string_view key, const JsonView& view) {
    if (key != "name") {
      view.expect_array();  // counters or records; an array would have been descended into
      assert(false);
      return;
    }
    entry().name = view.name();
    if (!entries_.insert(entry().name, 0)) view.fail(text("entry ", base::quoted(entry().name), " is there twice"));
  }

  void read_counters(const JsonView& view) {
    view.expect_members({"name", "size"});
    CounterArray out;
    out.name = view.member("name").name();
    out.first = entry().counter_count;
    out.size = static_cast<uint32_t>(view.member("size").unsigned_integer(1, max_entry_counters));
    if (out.size > max_entry_counters - out.first) {
      view.fail(text("makes more than ", max_entry_counters, " counters in the entry"));
    }
    if (!counters_.insert(out.name, static_cast<uint32_t>(entry().counters.size()))) {
      view.fail(text("counter ", base::quoted(out.name), " is there twice"));
    }
    entry().counter_count += out.size;
    entry().counters.push_back(std::move(out));
  }

  void add_record(const JsonView& view) {
    Record record = read_record(view, {program_, opcodes_, tensors_, counters_, entry().counters});
    record.first_tile = entry().tile_count;
    entry().tile_count += record.tile_count;
    if (entry().tile_count > max_entry_tiles) view.fail(text("makes more than ", max_entry_tiles, " tiles a step"));
    entry().records.push_back(std::move(record));
  }

  std::string folder_;
  std::string file_;
  Program program_;
  WeightIndex weights_;
  NameIndex targets_, weight_names_, opcodes_, tensors_, entries_;
  NameIndex counters_;  // of the entry that is being read
  uint64_t rank_bytes_ = 0;
  OrderedMembers program_order_{program_members};
  OrderedMembers entry_order_{entry_members};
  const Json no_value_;  // for views of containers that are read piece by piece
};

}  // namespace

Program parse_program(std::string_view text, const std::string& folder, const std::string& file) {
  ProgramReader reader(folder, file);
  parse_json(text, file, reader);
  return reader.take();
}

std::string program_file(const std::string& path) {
  std::error_code error;
  const bool is_folder =
      path.find('\0') == std::string::npos && std::filesystem::is_directory(system_path(path), error);
  return is_folder ? path + "/program.json" : path;
}

Program read_package(const std::string& path) {
  const std::string file_path = program_file(path);
  const base::MappedFile file(file_path);
  const std::string parent = base::utf8_path(system_path(file_path).parent_path());
  const auto bytes = file.bytes();
  return parse_program({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, parent.empty() ? "." : parent,
                       file_path);
}

}  // namespace mkrt::package
