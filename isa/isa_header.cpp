// mkrt_isa_header DEFINITION.json OUT.hpp: writes an instruction set's numbers as a C++ header.
//
// The header holds enumerations and one constant, so that host code and CUDA device code can both include it:
//
//     namespace mkrt::isa::llm {                  // the last part of the ISA's name
//     inline constexpr std::uint64_t fingerprint = ...;
//     enum Opcode : std::uint32_t { opcode_embed = 0, ..., opcode_count = 8 };
//     namespace embed {                           // one for each opcode
//     enum Operand : std::uint32_t { tokens = 0, ..., operand_count = 4 };
//     enum Parameter : std::uint32_t { vocabulary = 0, ..., parameter_count = 2 };
//     enum Fault : std::uint32_t { fault_none = 0, fault_position_outside_token_list = 1, ... };
//     }
//     }
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/failure.hpp"
#include "package/isa.hpp"

namespace {

using mkrt::package::IsaDefinition;
using mkrt::package::OpcodeDefinition;

bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// "mkrt.llm" gives "llm".
std::string namespace_name(const std::string& isa_name) {
  std::string out = isa_name.substr(isa_name.rfind('.') + 1);
  std::replace_if(
      out.begin(), out.end(), [](char c) { return !is_word_character(c); }, '_');
  if (out.empty() || (out[0] >= '0' && out[0] <= '9')) out = "isa_" + out;
  return out;
}

// "the position is outside the token list" gives "fault_position_outside_token_list".
std::string fault_name(const std::string& sentence) {
  static constexpr std::array<std::string_view, 5> left_out{"the", "a", "an", "is", "are"};
  std::string words = sentence;
  std::replace_if(
      words.begin(), words.end(), [](char c) { return !is_word_character(c); }, ' ');
  std::istringstream stream(words);
  std::string out = "fault";
  for (std::string word; stream >> word;) {
    if (std::find(left_out.begin(), left_out.end(), word) == left_out.end()) out += '_' + word;
  }
  return out;
}

// The enumerators of one opcode share a scope, where every name can be there only once.
class Scope {
 public:
  explicit Scope(std::string opcode) : opcode_(std::move(opcode)) {}
  const std::string& add(const std::string& name) {
    if (!names_.insert(name).second) throw std::runtime_error("opcode " + opcode_ + " has two things named " + name);
    return *names_.find(name);
  }

 private:
  std::string opcode_;
  std::set<std::string> names_;
};

template <class Definition>
void write_enumeration(std::ostream& out, Scope& scope, const char* type, const std::vector<Definition>& definitions,
                       const char* count_name) {
  out << "enum " << type << " : std::uint32_t {\n";
  for (size_t i = 0; i < definitions.size(); ++i) out << "  " << scope.add(definitions[i].name) << " = " << i << ",\n";
  out << "  " << scope.add(count_name) << " = " << definitions.size() << "\n};\n";
}

void write_faults(std::ostream& out, Scope& scope, const std::vector<std::string>& faults) {
  out << "enum Fault : std::uint32_t {\n";
  for (size_t i = 0; i < faults.size(); ++i) {
    out << "  " << scope.add(fault_name(faults[i])) << " = " << i + 1 << ",  // " << mkrt::base::quoted(faults[i])
        << "\n";
  }
  out << "  " << scope.add("fault_none") << " = 0\n};\n";
}

void write_opcode(std::ostream& out, const OpcodeDefinition& opcode) {
  Scope scope(opcode.name);
  out << "\nnamespace " << opcode.name << " {\n";
  write_enumeration(out, scope, "Operand", opcode.operands, "operand_count");
  write_enumeration(out, scope, "Parameter", opcode.parameters, "parameter_count");
  write_faults(out, scope, opcode.faults);
  out << "}  // namespace " << opcode.name << "\n";
}

std::string header_text(const IsaDefinition& isa) {
  std::ostringstream out;
  const std::string name = namespace_name(isa.name);
  out << "// Generated from the definition of " << isa.name << ", version " << isa.version << ".\n"
      << "#pragma once\n\n#include <cstdint>\n\nnamespace mkrt::isa::" << name << " {\n\n"
      << "inline constexpr std::uint64_t fingerprint = 0x" << std::hex << std::setw(16) << std::setfill('0')
      << isa.fingerprint << std::dec << "u;\n\nenum Opcode : std::uint32_t {\n";
  for (size_t i = 0; i < isa.opcodes.size(); ++i) out << "  opcode_" << isa.opcodes[i].name << " = " << i << ",\n";
  out << "  opcode_count = " << isa.opcodes.size() << "\n};\n";
  for (const OpcodeDefinition& opcode : isa.opcodes) write_opcode(out, opcode);
  out << "\n}  // namespace mkrt::isa::" << name << "\n";
  return std::move(out).str();
}

void write_file(const std::string& path, const std::string& text) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(path + ": cannot be written");
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 3) {
    std::fprintf(stderr, "usage: mkrt_isa_header DEFINITION.json OUT.hpp\n");
    return 2;
  }
  try {
    write_file(arguments[2], header_text(mkrt::package::read_isa(arguments[1])));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mkrt_isa_header: %s\n", error.what());
    return 1;
  }
  return 0;
}
