#define PCRE2_CODE_UNIT_WIDTH 8
#include "cli/pattern.hpp"

#include <pcre2.h>

#include "cli/error.hpp"

namespace mkrt::cli {
namespace {

// PCRE2's \s also holds U+180E, which Unicode took out of White_Space in version 6.3; tokenizers mean the property.
std::string with_unicode_white_space(std::string_view expression) {
  std::string out;
  for (size_t i = 0; i < expression.size(); ++i) {
    if (expression[i] != '\\' || i + 1 == expression.size()) {
      out += expression[i];
      continue;
    }
    const char escaped = expression[++i];
    if (escaped == 's' || escaped == 'S') {
      out += escaped == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    } else {
      (out += '\\') += escaped;
    }
  }
  return out;
}

std::string reason(int code) {
  PCRE2_UCHAR message[256];
  pcre2_get_error_message(code, message, sizeof message);
  return reinterpret_cast<const char*>(message);
}

using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;

}  // namespace

Pattern::Pattern(std::string_view expression, Syntax syntax) {
  const std::string source = syntax == Syntax::kRegex ? with_unicode_white_space(expression) : std::string(expression);
  const uint32_t options = PCRE2_UTF | (syntax == Syntax::kRegex ? PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C : PCRE2_LITERAL);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(), options, &error, &offset, nullptr);
  if (code == nullptr) {
    throw Error("the regular expression \"" + std::string(expression) + "\" is not understood: " + reason(error));
  }
  code_ =
      std::shared_ptr<const pcre2_code>(code, [](const pcre2_code* c) { pcre2_code_free(const_cast<pcre2_code*>(c)); });
  // Where just-in-time compilation is not to be had, the interpreter does the same more slowly.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

Pattern::Match Pattern::find(std::string_view text, size_t from) const {
  // A vector of one pair: groups inside the expression are of no interest.
  const MatchData data(pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  if (data == nullptr) throw Error("memory is exhausted");
  // NOTEMPTY: an empty match is no piece. The text was checked as a whole before it came here.
  const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data.get(), nullptr);
  if (found == PCRE2_ERROR_NOMATCH) return {std::string_view::npos, std::string_view::npos};
  if (found < 0) throw Error("the tokenizer's regular expression cannot be matched to the text: " + reason(found));
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
  return {bounds[0], bounds[1]};
}

}  // namespace mkrt::cli
