// Regular expressions of tokenizers, over UTF-8 with Unicode's character classes.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace mkrt::cli {

class Pattern {
 public:
  // Throws Error with the library's reason where `expression` cannot be understood. A literal stands for itself.
  enum class Syntax { kRegex, kLiteral };
  explicit Pattern(std::string_view expression, Syntax syntax = Syntax::kRegex);

  struct Match {
    size_t begin, end;
  };
  // The first match of at least one byte at or after `from` of `text`, which must be well-formed UTF-8;
  // begin = npos where there is none. Throws Error where matching takes more than the library's limits.
  Match find(std::string_view text, size_t from) const;

 private:
  std::shared_ptr<const pcre2_real_code_8> code_;
};

}  // namespace mkrt::cli
