#include "package/json.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <unordered_set>
#include <utility>

#include "base/failure.hpp"

namespace mkrt::package {

namespace {

// A record's deepest value, entries/0/records/0/operands/x/rank/offset, is 8 deep; an unlimited depth would let a file
// of brackets grow the parser's stack to many times the file's size.
constexpr size_t max_depth = 16;

void append_pointer_key(std::string& out, std::string_view key) {
  std::string shown = base::quoted(key);
  out += '/';
  for (size_t i = 1; i + 1 < shown.size(); ++i) {  // without the quotes
    if (shown[i] == '~') {
      out += "~0";
    } else if (shown[i] == '/') {
      out += "~1";
    } else {
      out += shown[i];
    }
  }
}

void append_pointer_index(std::string& out, uint64_t index) { out += '/' + std::to_string(index); }

[[noreturn]] void fail_at(const JsonOrigin& origin, const std::string& pointer, std::string_view message,
                          mkrt_status status = MKRT_ERROR_FORMAT) {
  const std::string label = origin.label.empty() ? "" : base::text(" (", base::quoted(origin.label), ")");
  throw base::Failure(status, base::text(base::shown_path(origin.file), ": ", pointer.empty() ? "the root" : pointer,
                                         label, ": ", message))
      .at_record(origin.record);
}

}  // namespace

std::string json_pointer(const JsonPath& path) {
  std::string out;
  for (const JsonStep& step : path) {
    if (step.is_index) {
      append_pointer_index(out, step.index);
    } else {
      append_pointer_key(out, step.key);
    }
  }
  return out;
}

/* ---- views ------------------------------------------------------------------------------------------------------ */

std::string JsonView::pointer() const {
  if (parent_ == nullptr) return origin_->pointer;
  std::string out = parent_->pointer();
  if (is_index_) {
    append_pointer_index(out, index_);
  } else {
    append_pointer_key(out, key_);
  }
  return out;
}

void JsonView::fail(std::string_view message, mkrt_status status) const {
  fail_at(*origin_, pointer(), message, status);
}

void JsonView::expect_object() const {
  if (!value_->is_object()) fail("must be an object");
}

void JsonView::expect_members(std::initializer_list<std::string_view> required,
                              std::initializer_list<std::string_view> optional) const {
  expect_object();
  size_t found = 0;
  for (auto it = value_->begin(); it != value_->end(); ++it) {
    const std::string_view key = it.key();
    if (std::find(required.begin(), required.end(), key) != required.end()) {
      ++found;
    } else if (std::find(optional.begin(), optional.end(), key) == optional.end()) {
      fail(base::text("has an unknown member ", base::quoted(key)));
    }
  }
  if (found == required.size()) return;
  for (const std::string_view key : required) {
    if (!find(key)) fail(base::text("lacks the member ", base::quoted(key)));
  }
}

JsonView JsonView::member(std::string_view key) const {
  const auto it = value_->find(key);
  assert(it != value_->end());
  return JsonView(*it, this, key);
}

std::optional<JsonView> JsonView::find(std::string_view key) const {
  const auto it = value_->find(key);
  if (it == value_->end()) return std::nullopt;
  return JsonView(*it, this, key);
}

size_t JsonView::expect_array(size_t least, size_t most) const {
  if (!value_->is_array()) fail("must be an array");
  const size_t size = value_->size();
  if (size < least) fail(base::text("has ", size, " elements, must have at least ", least));
  if (size > most) fail(base::text("has ", size, " elements, may have at most ", most));
  return size;
}

JsonView JsonView::element(size_t index) const { return JsonView((*value_)[index], this, index); }

const std::string& JsonView::string(size_t least, size_t most) const {
  if (!value_->is_string()) fail("must be a string");
  const auto& out = value_->get_ref<const std::string&>();
  if (out.size() < least) fail("must not be empty");
  if (out.size() > most) fail(base::text("has ", out.size(), " bytes, may have at most ", most));
  if (out.find('\0') != std::string::npos) fail("contains a NUL character");
  return out;
}

bool JsonView::boolean() const {
  if (!value_->is_boolean()) fail("must be true or false");
  return value_->get<bool>();
}

uint64_t JsonView::unsigned_integer(uint64_t least, uint64_t most) const {
  const bool representable =
      value_->is_number_unsigned() || (value_->is_number_integer() && value_->get<int64_t>() >= 0);
  if (!representable || value_->get<uint64_t>() < least || value_->get<uint64_t>() > most) {
    fail(base::text("must be an integer from ", least, " to ", most));
  }
  return value_->get<uint64_t>();
}

int64_t JsonView::integer(int64_t least, int64_t most) const {
  const bool representable =
      value_->is_number_unsigned() ? value_->get<uint64_t>() <= max_count : value_->is_number_integer();
  if (!representable || value_->get<int64_t>() < least || value_->get<int64_t>() > most) {
    fail(base::text("must be an integer from ", least, " to ", most));
  }
  return value_->get<int64_t>();
}

float JsonView::number() const {
  if (!value_->is_number()) fail("must be a number");
  // From double, the comparison comes before the conversion: a double outside float's range converts to anything.
  const double value = value_->get<double>();
  if (!(std::abs(value) <= static_cast<double>(std::numeric_limits<float>::max()))) fail("does not fit in an f32");
  return static_cast<float>(value);
}

/* ---- parser ----------------------------------------------------------------------------------------------------- */

namespace {

// Empties a tree from its leaves on. The library's own destructor first moves a container's children into a vector that
// it allocates; where there is no memory left, that would end the process: destructors cannot fail. Empty containers
// need no vector. `max_depth` bounds the recursion.
void dismantle(Json& tree) noexcept {
  if (!tree.is_structured()) return;
  for (Json& child : tree) dismantle(child);
  tree.clear();
}

// The JSON library's callbacks. Values below a container that the visitor descends into are built as trees.
class Parser {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  Parser(std::string_view text, const std::string& file, JsonVisitor& visitor)
      : text_(text), file_(file), visitor_(visitor) {}
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;
  ~Parser() { dismantle(root_); }

  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(number_integer_t value) { return scalar(value); }
  bool number_unsigned(number_unsigned_t value) { return scalar(value); }
  bool number_float(number_float_t value, const string_t&) { return scalar(value); }
  bool string(string_t& value) { return scalar(std::move(value)); }
  bool binary(binary_t&) { return false; }  // not in JSON text

  bool start_object(std::size_t) { return start(true); }
  bool start_array(std::size_t) { return start(false); }
  bool end_object() { return end(); }
  bool end_array() { return end(); }

  bool key(string_t& name) {
    Frame& frame = frames_.back();
    const bool is_new = frame.tree == nullptr ? frame.keys.insert(name).second : !frame.tree->contains(name);
    if (!is_new) fail(base::text("has the member ", base::quoted(name), " twice"));
    if (frame.tree == nullptr) visitor_.member(container_path(), name);
    frame.key = std::move(name);
    return true;
  }

  // `position` counts the bytes up to and with the one that cannot be; one more than there are where the text ends too
  // early.
  bool parse_error(std::size_t position, const std::string& token, const Json::exception& error) {
    const size_t offset = std::min(position, text_.size());
    const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(offset), '\n');
    throw base::Failure(MKRT_ERROR_FORMAT,
                        base::text(base::shown_path(file_), ": line ", line, ", byte ", position, pointer_note(),
                                   ": is not JSON: ", describe_error(position, token, error)));
  }

 private:
  // An open container: descended into (`tree` is null), or part of a tree that is being built.
  struct Frame {
    bool is_object;
    Json* tree;
    std::string key;                       // of the member that is being read
    uint64_t count = 0;                    // elements that were read
    std::unordered_set<std::string> keys;  // of a descended object; a tree knows its own
  };

  // Path of the value that is being read.
  JsonPath path() const {
    JsonPath out;
    for (const Frame& frame : frames_) out.push_back({!frame.is_object, frame.key, frame.count});
    return out;
  }

  // Path of the container that is being read.
  JsonPath container_path() const {
    JsonPath out = path();
    out.pop_back();
    return out;
  }

  std::string pointer_note() const {
    const std::string pointer = json_pointer(path());
    return pointer.empty() ? pointer : base::text(" (", pointer, ")");
  }

  // Fails in the container that is being read.
  [[noreturn]] void fail(std::string_view message) const {
    fail_at({file_, "", -1, ""}, json_pointer(container_path()), message);
  }

  // What was found at `position` of parse_error, in words of our own: the library's quote the text at any length. Where
  // it read a string or a number last, that is `token`; otherwise `token` may begin with something older.
  std::string describe_error(size_t position, const std::string& token, const Json::exception& error) const {
    if (dynamic_cast<const Json::out_of_range*>(&error) != nullptr) {
      return base::text("no number is as large as ", base::quoted(token));
    }
    if (position == 0 || position > text_.size()) return "the text ends too early";
    const auto at = static_cast<uint8_t>(text_[position - 1]);
    const auto before = static_cast<uint8_t>(position > 1 ? text_[position - 2] : 0);
    // "[...] ...: syntax error while parsing ... - reason"; a closing quote alone does not tell whether the string is
    // whole and in the wrong place, or ends within an escape.
    const std::string_view reason = error.what();
    if (reason.substr(std::min(reason.find(" - "), reason.size())).starts_with(" - invalid string")) {
      if (at < 0x20) return "a string holds a control character that is not escaped";
      // Where a sequence breaks off, the byte after it is what the library stumbles over.
      return at >= 0x80 || before >= 0x80 ? "a string holds bytes that are not UTF-8"
                                          : "a string holds an escape that is none";
    }
    if (at == 0) return "found a NUL character";
    if (at >= 0x80) return "found a character beyond ASCII outside of strings";
    return base::text("found ", base::quoted(at == '"' ? std::string_view(token) : word_at(position - 1)),
                      ", which cannot be there");
  }

  // The word or the number at `last` or just before it, or the sign there.
  std::string_view word_at(size_t last) const {
    const auto is_part = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' || c == '-' ||
             c == '.';
    };
    if (last > 0 && !is_part(text_[last]) && static_cast<uint8_t>(text_[last]) <= ' ') --last;
    size_t first = last;
    while (first > 0 && is_part(text_[last]) && is_part(text_[first - 1])) --first;
    while (last + 1 < text_.size() && is_part(text_[last]) && is_part(text_[last + 1])) ++last;
    return text_.substr(first, last + 1 - first);
  }

  bool inside_tree() const { return !frames_.empty() && frames_.back().tree != nullptr; }

  // Puts a value at its place in the tree that is being built.
  Json* insert(Json&& value) {
    Frame& frame = frames_.back();
    if (!frame.is_object) {
      frame.tree->push_back(std::move(value));
      return &frame.tree->back();
    }
    Json& member = (*frame.tree)[frame.key];
    member = std::move(value);
    return &member;
  }

  void count_value() {
    if (!frames_.empty()) ++frames_.back().count;
  }

  bool scalar(Json value) {
    if (inside_tree()) {
      insert(std::move(value));
    } else {
      visitor_.value(path(), value);
    }
    count_value();
    return true;
  }

  bool start(bool is_object) {
    if (frames_.size() == max_depth) {
      fail_at({file_, "", -1, ""}, json_pointer(path()), base::text("is nested deeper than ", max_depth, " levels"));
    }
    Json* tree = nullptr;
    Json container = is_object ? Json::object() : Json::array();
    if (inside_tree()) {
      tree = insert(std::move(container));
    } else if (!visitor_.descend(path(), is_object)) {
      root_ = std::move(container);
      tree = &root_;
    }
    frames_.push_back({is_object, tree, {}, 0, {}});
    return true;
  }

  bool end() {
    const bool was_descended = frames_.back().tree == nullptr;
    const bool was_root = frames_.back().tree == &root_;
    frames_.pop_back();
    if (was_descended) visitor_.leave(path());
    if (was_root) {
      visitor_.value(path(), root_);
      dismantle(root_);
    }
    count_value();
    return true;
  }

  std::string_view text_;
  const std::string& file_;
  JsonVisitor& visitor_;
  std::vector<Frame> frames_;
  Json root_;  // of the tree that is being built
};

class WholeTree : public JsonVisitor {
 public:
  void member(const JsonPath&, std::string_view) override {}
  bool descend(const JsonPath&, bool) override { return false; }
  void value(const JsonPath&, const Json& value) override { tree_ = value; }
  void leave(const JsonPath&) override {}
  Json take() { return std::move(tree_); }

 private:
  Json tree_;
};

}  // namespace

void parse_json(std::string_view text, const std::string& file, JsonVisitor& visitor) {
  Parser parser(text, file, visitor);
  Json::sax_parse(text.data(), text.data() + text.size(), &parser);
}

Json parse_json(std::string_view text, const std::string& file) {
  WholeTree tree;
  parse_json(text, file, tree);
  return tree.take();
}

}  // namespace mkrt::package
