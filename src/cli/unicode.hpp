// UTF-8: checking it, showing it as it arrives, and composing it (NFC).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mkrt::cli {

// Byte offset of the first byte that is not part of well-formed UTF-8; npos where all of `text` is.
size_t find_invalid_utf8(std::string_view text) noexcept;

// Turns bytes that arrive in pieces into text that can be shown: code points only once they are complete, and U+FFFD
// for each longest beginning of a code point that cannot be completed (Unicode 15, section 3.9, "maximal subparts").
class Utf8Stream {
 public:
  // The text that `bytes` completed.
  std::string push(std::string_view bytes);
  // Nothing more comes: U+FFFD where a code point was begun, otherwise nothing.
  std::string finish();

 private:
  std::string pending_;  // a beginning of a code point, at most 3 bytes
};

// All of `bytes` as text that can be shown.
std::string to_text(std::string_view bytes);

// Normalization form C of well-formed UTF-8.
std::string compose_nfc(std::string_view text);

}  // namespace mkrt::cli
