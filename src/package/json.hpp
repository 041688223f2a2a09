// Strict JSON: a parser that hands out one value at a time, and views of such values that fail with their place.
//
// Both refuse what RFC 8259 leaves open: duplicate members, NUL characters, and nesting deeper than any file of ours.
// Every failure is a base::Failure (FORMAT) that names the file and the JSON pointer.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/checked.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::package {

using Json = nlohmann::json;

using base::max_count;
// Names have 1 to this many bytes.
inline constexpr size_t max_name_bytes = 256;

// Where a value came from, for messages. Lives longer than the views that refer to it.
struct JsonOrigin {
  std::string file;
  std::string pointer;  // of the value that the first view shows
  int32_t record = -1;  // index in its entry where the value is a schedule record
  std::string label;    // that record's, if it has one
};

// A place in a file that is being parsed: the members and elements that lead to it, outermost first.
struct JsonStep {
  bool is_index = false;
  std::string key;
  uint64_t index = 0;
};
using JsonPath = std::vector<JsonStep>;
// As a JSON pointer (RFC 6901); long keys are cut.
std::string json_pointer(const JsonPath& path);

// A value inside a parsed tree, with the way to it. Cheap to copy; refers to its parent, which must stay in place.
class JsonView {
 public:
  JsonView(const Json& value, const JsonOrigin& origin) : value_(&value), origin_(&origin) {}

  // Throws with "file: pointer: message".
  [[noreturn]] void fail(std::string_view message, mkrt_status status = MKRT_ERROR_FORMAT) const;

  // Fails unless this is an object that has all of `required` and nothing but those and `optional`.
  void expect_members(std::initializer_list<std::string_view> required,
                      std::initializer_list<std::string_view> optional = {}) const;
  // A member; expect_members has made sure that required ones are there.
  JsonView member(std::string_view key) const;
  std::optional<JsonView> find(std::string_view key) const;

  // Fails unless this is an array of `least` to `most` elements; gives their number.
  size_t expect_array(size_t least = 0, size_t most = SIZE_MAX) const;
  JsonView element(size_t index) const;
  // Fails unless this is an object.
  void expect_object() const;

  // Calls function(key, view) for each member of an object, or function(view) for each element of an array.
  template <class Function>
  void each_member(Function function) const {
    expect_object();
    for (auto it = value_->begin(); it != value_->end(); ++it) function(it.key(), JsonView(it.value(), this, it.key()));
  }
  template <class Function>
  void each_element(Function function) const {
    const size_t count = expect_array();
    for (size_t i = 0; i < count; ++i) function(element(i));
  }

  bool is_string() const { return value_->is_string(); }
  bool is_object() const { return value_->is_object(); }
  // A string of `least` to `most` bytes without NUL characters.
  const std::string& string(size_t least, size_t most) const;
  const std::string& name() const { return string(1, max_name_bytes); }
  bool boolean() const;
  // An integer, written without fraction or exponent, from `least` to `most`.
  uint64_t unsigned_integer(uint64_t least, uint64_t most) const;
  int64_t integer(int64_t least, int64_t most) const;
  // Any number that is finite as a float.
  float number() const;

 private:
  JsonView(const Json& value, const JsonView* parent, std::string_view key)
      : value_(&value), origin_(parent->origin_), parent_(parent), key_(key) {}
  JsonView(const Json& value, const JsonView* parent, size_t index)
      : value_(&value), origin_(parent->origin_), parent_(parent), index_(index), is_index_(true) {}

  std::string pointer() const;

  const Json* value_;
  const JsonOrigin* origin_;
  const JsonView* parent_ = nullptr;
  std::string_view key_;
  size_t index_ = 0;
  bool is_index_ = false;
};

// Receives a file's values as they are parsed.
class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;
  // The next member's name, in an object that was descended into.
  virtual void member(const JsonPath& object, std::string_view key) = 0;
  // Asked when the array or object at `path` begins: true to receive its members one by one, then leave(); false to
  // receive it as one value.
  virtual bool descend(const JsonPath& path, bool is_object) = 0;
  // A whole value, gone after the call.
  virtual void value(const JsonPath& path, const Json& value) = 0;
  // The end of a container that was descended into.
  virtual void leave(const JsonPath& path) = 0;
};

// Parses `text`, all of it, and tells `visitor`.
void parse_json(std::string_view text, const std::string& file, JsonVisitor& visitor);
// Parses `text` into one tree.
Json parse_json(std::string_view text, const std::string& file);

}  // namespace mkrt::package
