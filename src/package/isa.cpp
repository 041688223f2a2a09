#include "package/isa.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/failure.hpp"
#include "base/mapped_file.hpp"

namespace mkrt::package {

namespace {

constexpr std::array<std::pair<std::string_view, Dtype>, 6> dtype_names{{{"f32", Dtype::f32},
                                                                         {"f16", Dtype::f16},
                                                                         {"bf16", Dtype::bf16},
                                                                         {"i32", Dtype::i32},
                                                                         {"u32", Dtype::u32},
                                                                         {"u8", Dtype::u8}}};
constexpr std::array<std::pair<std::string_view, Access>, 5> access_names{{{"read", Access::read},
                                                                           {"write", Access::write},
                                                                           {"read_write", Access::read_write},
                                                                           {"append", Access::append},
                                                                           {"gather", Access::gather}}};
constexpr std::array<std::pair<std::string_view, ParameterType>, 3> parameter_type_names{
    {{"u32", ParameterType::u32}, {"i32", ParameterType::i32}, {"f32", ParameterType::f32}}};

template <class Value, size_t count>
std::optional<Value> find_named(const std::array<std::pair<std::string_view, Value>, count>& names,
                                std::string_view name) noexcept {
  for (const auto& [candidate, value] : names) {
    if (candidate == name) return value;
  }
  return std::nullopt;
}

template <class Value, size_t count>
Value expect_named(const JsonView& view, const std::array<std::pair<std::string_view, Value>, count>& names,
                   std::string_view what) {
  const std::string& name = view.string(0, SIZE_MAX);
  if (const auto value = find_named(names, name)) return *value;
  view.fail(base::text(base::quoted(name), " is not ", what));
}

template <class Definition>
std::optional<uint32_t> index_of(const std::vector<Definition>& definitions, std::string_view name) {
  for (size_t i = 0; i < definitions.size(); ++i) {
    if (definitions[i].name == name) return static_cast<uint32_t>(i);
  }
  return std::nullopt;
}

/* ---- constraints ------------------------------------------------------------------------------------------------ */

bool starts_identifier(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// product relation product; product: factor { "*" factor }
class ConstraintParser {
 public:
  ConstraintParser(std::string_view text, const OpcodeDefinition& opcode) : text_(text), opcode_(opcode) {}

  Constraint parse() {
    Constraint out;
    out.text = text_;
    out.left = product();
    out.relation = relation();
    out.right = product();
    skip_spaces();
    if (at_ != text_.size()) fail("has something after its right side");
    return out;
  }

 private:
  [[noreturn]] void fail(std::string_view message) const {
    throw base::Failure(MKRT_ERROR_FORMAT,
                        base::text("constraint ", base::quoted(text_), " ", message, " (byte ", at_, ")"));
  }

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  bool take(std::string_view token) {
    skip_spaces();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  void expect(std::string_view token) {
    if (!take(token)) fail(base::text("lacks ", base::quoted(token)));
  }

  Constraint::Relation relation() {
    if (take("==")) return Constraint::Relation::equal;
    if (take("<=")) return Constraint::Relation::less_equal;
    if (take(">=")) return Constraint::Relation::greater_equal;
    fail("lacks \"==\", \"<=\" or \">=\"");
  }

  std::vector<ConstraintFactor> product() {
    std::vector<ConstraintFactor> out{factor()};
    while (take("*")) out.push_back(factor());
    return out;
  }

  ConstraintFactor factor() {
    if (next_is_digit()) return constant();
    const std::string_view name = identifier();
    if (name == "pad" && take("(")) return padded();
    if (at_ < text_.size() && text_[at_] == '.') return property(name);
    return parameter(name);
  }

  ConstraintFactor padded() {
    if (next_is_digit()) return finish_pad(constant());
    const std::string_view name = identifier();
    return finish_pad(at_ < text_.size() && text_[at_] == '.' ? property(name) : parameter(name));
  }

  ConstraintFactor finish_pad(ConstraintFactor factor) {
    expect(",");
    if (!next_is_digit()) fail("lacks the number to pad to");
    factor.pad_to = integer();
    if (factor.pad_to == 0) fail("pads to a multiple of 0");
    expect(")");
    return factor;
  }

  ConstraintFactor constant() {
    ConstraintFactor out;
    out.constant = integer();
    return out;
  }

  // "operand.size", "operand.rows" or "grid.0"; `name` was read, the point comes next.
  ConstraintFactor property(std::string_view name) {
    ++at_;
    ConstraintFactor out;
    if (next_is_digit()) {
      if (name != "grid") fail("numbers something that is not the grid");
      const uint64_t dimension = integer();
      if (dimension >= MKRT_TILE_DIMENSIONS) fail(base::text("names grid dimension ", dimension));
      out.kind = ConstraintFactor::Kind::grid;
      out.index = static_cast<uint32_t>(dimension);
      return out;
    }
    const auto operand = index_of(opcode_.operands, name);
    if (!operand) fail(base::text("names an unknown operand ", base::quoted(name)));
    const std::string_view what = identifier();
    if (what != "size" && what != "rows") fail("asks an operand for something else than its size or rows");
    out.kind = what == "size" ? ConstraintFactor::Kind::operand_size : ConstraintFactor::Kind::operand_rows;
    out.index = *operand;
    return out;
  }

  ConstraintFactor parameter(std::string_view name) {
    const auto index = index_of(opcode_.parameters, name);
    if (!index) fail(base::text("names an unknown parameter ", base::quoted(name)));
    if (opcode_.parameters[*index].type != ParameterType::u32) {
      fail(base::text("names the parameter ", base::quoted(name), ", which is not a u32"));
    }
    ConstraintFactor out;
    out.kind = ConstraintFactor::Kind::parameter;
    out.index = *index;
    return out;
  }

  bool next_is_digit() {
    skip_spaces();
    return at_ < text_.size() && is_digit(text_[at_]);
  }

  uint64_t integer() {
    uint64_t out = 0;
    for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) {
      const auto digit = static_cast<uint64_t>(text_[at_] - '0');
      if (out > (max_count - digit) / 10) fail("has an integer of more than 63 bits");
      out = out * 10 + digit;
    }
    return out;
  }

  std::string_view identifier() {
    skip_spaces();
    if (at_ == text_.size() || !starts_identifier(text_[at_])) fail("lacks a factor");
    const size_t start = at_;
    while (at_ < text_.size() && (starts_identifier(text_[at_]) || is_digit(text_[at_]))) ++at_;
    return text_.substr(start, at_ - start);
  }

  std::string_view text_;
  const OpcodeDefinition& opcode_;
  size_t at_ = 0;
};

/* ---- definitions ------------------------------------------------------------------------------------------------ */

// Names that constraints and generated headers use: letters, digits and underscores, no digit first.
const std::string& identifier(const JsonView& view) {
  const std::string& name = view.name();
  const bool valid = starts_identifier(name[0]) &&
                     std::all_of(name.begin(), name.end(), [](char c) { return starts_identifier(c) || is_digit(c); });
  if (!valid) view.fail(base::text(base::quoted(name), " is not made of letters, digits and underscores"));
  return name;
}

template <class Definition>
void expect_new_name(const JsonView& view, const std::vector<Definition>& before, std::string_view what) {
  const std::string& name = identifier(view.member("name"));
  if (index_of(before, name)) view.member("name").fail(base::text(what, " ", base::quoted(name), " is there twice"));
}

std::vector<uint32_t> parse_dimensions(const JsonView& view) {
  std::vector<uint32_t> out;
  view.expect_array(0, MKRT_TILE_DIMENSIONS);
  view.each_element([&](const JsonView& element) {
    const auto dimension = static_cast<uint32_t>(element.unsigned_integer(0, MKRT_TILE_DIMENSIONS - 1));
    // One form for one meaning, as the fingerprint is computed of it.
    if (!out.empty() && dimension <= out.back()) element.fail("dimensions are not in ascending order");
    out.push_back(dimension);
  });
  return out;
}

OperandDefinition parse_operand(const JsonView& view) {
  OperandDefinition out;
  out.name = view.member("name").name();
  out.access = expect_named(view.member("access"), access_names,
                            "\"read\", \"write\", \"read_write\", \"append\" or \"gather\"");
  const JsonView dtypes = view.member("dtypes");
  dtypes.expect_array(1);
  dtypes.each_element([&](const JsonView& element) {
    const Dtype dtype = expect_named(element, dtype_names, "a dtype");
    if (std::find(out.dtypes.begin(), out.dtypes.end(), dtype) != out.dtypes.end()) {
      element.fail(base::text("dtype ", base::quoted(dtype_name(dtype)), " is there twice"));
    }
    out.dtypes.push_back(dtype);
  });
  if (const auto optional = view.find("optional")) out.optional = optional->boolean();
  const auto shared = view.find("shared_dimensions");
  if (shared && out.access != Access::append) shared->fail("only operands of access \"append\" have shared dimensions");
  if (!shared && out.access == Access::append) view.fail("access \"append\" needs \"shared_dimensions\"");
  if (shared) out.shared_dimensions = parse_dimensions(*shared);
  if (const auto whole = view.find("whole")) out.whole = whole->boolean();
  if (const auto constant = view.find("constant")) out.constant = constant->boolean();
  return out;
}

void parse_operands(const JsonView& view, OpcodeDefinition& out) {
  view.expect_array(0, MKRT_RECORD_OPERANDS);
  view.each_element([&](const JsonView& element) {
    element.expect_members({"name", "access", "dtypes"}, {"optional", "shared_dimensions", "whole", "constant"});
    expect_new_name(element, out.operands, "operand");
    out.operands.push_back(parse_operand(element));
  });
}

void parse_parameters(const JsonView& view, OpcodeDefinition& out) {
  view.expect_array(0, MKRT_RECORD_PARAMETERS);
  view.each_element([&](const JsonView& element) {
    element.expect_members({"name", "type"});
    expect_new_name(element, out.parameters, "parameter");
    out.parameters.push_back({element.member("name").name(), expect_named(element.member("type"), parameter_type_names,
                                                                          "\"u32\", \"i32\" or \"f32\"")});
  });
}

void parse_constraints(const JsonView& view, OpcodeDefinition& out) {
  view.expect_array(0, max_opcode_constraints);
  view.each_element([&](const JsonView& element) {
    const std::string& text = element.name();
    try {
      out.constraints.push_back(parse_constraint(text, out));
    } catch (const base::Failure& failure) {
      element.fail(failure.message());
    }
  });
}

OpcodeDefinition parse_opcode(const JsonView& view) {
  OpcodeDefinition out;
  out.name = view.member("name").name();
  parse_operands(view.member("operands"), out);
  parse_parameters(view.member("parameters"), out);
  parse_constraints(view.member("constraints"), out);
  view.member("faults").expect_array(0, max_opcode_faults);
  view.member("faults").each_element([&](const JsonView& element) { out.faults.push_back(element.name()); });
  return out;
}

/* ---- fingerprint ------------------------------------------------------------------------------------------------ */

// The canonical bytes that the fingerprint is computed of.
class CanonicalBytes {
 public:
  void add(uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) bytes_.push_back(static_cast<char>(value >> shift & 0xff));
  }
  void add(std::string_view string) {
    add(static_cast<uint32_t>(string.size()));
    bytes_ += string;
  }
  template <class Element, class Function>
  void add_array(const std::vector<Element>& elements, Function add_element) {
    add(static_cast<uint32_t>(elements.size()));
    for (const Element& element : elements) add_element(element);
  }
  // FNV-1a of 64 bits: a few lines in any language, so that every tool that writes kernels can compute fingerprints.
  uint64_t hash() const {
    uint64_t hash = 0xcbf29ce484222325;
    for (const char byte : bytes_) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
    return hash;
  }

 private:
  std::string bytes_;
};

void add_opcode(CanonicalBytes& out, const OpcodeDefinition& opcode) {
  out.add(opcode.name);
  out.add_array(opcode.operands, [&](const OperandDefinition& operand) {
    out.add(operand.name);
    out.add(static_cast<uint32_t>(operand.access));
    out.add_array(operand.dtypes, [&](Dtype dtype) { out.add(static_cast<uint32_t>(dtype)); });
    out.add(static_cast<uint32_t>(operand.optional));
    out.add_array(operand.shared_dimensions, [&](uint32_t dimension) { out.add(dimension); });
    out.add(static_cast<uint32_t>(operand.whole));
    out.add(static_cast<uint32_t>(operand.constant));
  });
  out.add_array(opcode.parameters, [&](const ParameterDefinition& parameter) {
    out.add(parameter.name);
    out.add(static_cast<uint32_t>(parameter.type));
  });
  out.add_array(opcode.constraints, [&](const Constraint& constraint) { out.add(constraint.text); });
  out.add_array(opcode.faults, [&](const std::string& fault) { out.add(fault); });
}

}  // namespace

std::optional<Dtype> find_dtype(std::string_view name) noexcept { return find_named(dtype_names, name); }

std::string_view dtype_name(Dtype dtype) noexcept {
  for (const auto& [name, value] : dtype_names) {
    if (value == dtype) return name;
  }
  return "?";
}

Constraint parse_constraint(std::string_view text, const OpcodeDefinition& opcode) {
  return ConstraintParser(text, opcode).parse();
}

uint64_t compute_fingerprint(const IsaDefinition& isa) {
  CanonicalBytes bytes;
  bytes.add(isa.name);
  bytes.add(isa.version);
  bytes.add_array(isa.opcodes, [&](const OpcodeDefinition& opcode) { add_opcode(bytes, opcode); });
  return bytes.hash();
}

IsaDefinition parse_isa(const JsonView& view) {
  view.expect_members({"name", "version", "opcodes"});
  IsaDefinition out;
  out.name = view.member("name").name();
  out.version = static_cast<uint32_t>(view.member("version").unsigned_integer(0, UINT32_MAX));
  const JsonView opcodes = view.member("opcodes");
  opcodes.expect_array(1, max_opcodes);
  opcodes.each_element([&](const JsonView& element) {
    element.expect_members({"name", "operands", "parameters", "constraints", "faults"});
    expect_new_name(element, out.opcodes, "opcode");
    out.opcodes.push_back(parse_opcode(element));
  });
  out.fingerprint = compute_fingerprint(out);
  return out;
}

IsaDefinition read_isa(const std::string& path) {
  const base::MappedFile file(path);
  const auto bytes = file.bytes();
  const Json tree = parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
  const JsonOrigin origin{path, "", -1, ""};
  return parse_isa(JsonView(tree, origin));
}

}  // namespace mkrt::package
