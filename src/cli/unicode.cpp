#include "cli/unicode.hpp"

#include <utf8proc.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "cli/error.hpp"

namespace mkrt::cli {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

enum class Sequence { kComplete, kUnfinished, kInvalid };
struct Decoded {
  Sequence kind;
  size_t length;  // bytes of the code point, or of the longest beginning of one; at least 1
};

// Looks at the code point that starts at `text[0]`. The ranges are table 3-7 of the Unicode standard: they leave out
// overlong forms, surrogates and what lies beyond U+10FFFF already at the second byte.
Decoded decode_front(std::string_view text) noexcept {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Sequence::kComplete, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Sequence::kInvalid, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Sequence::kUnfinished, i};
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xBF)) return {Sequence::kInvalid, i};
  }
  return {Sequence::kComplete, length};
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) noexcept {
  for (size_t i = 0; i < text.size();) {
    const Decoded front = decode_front(text.substr(i));
    if (front.kind != Sequence::kComplete) return i;
    i += front.length;
  }
  return std::string_view::npos;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  const std::string_view all = pending_;
  std::string out;
  size_t i = 0;
  while (i < all.size()) {
    const Decoded front = decode_front(all.substr(i));
    if (front.kind == Sequence::kUnfinished) break;
    out += front.kind == Sequence::kComplete ? all.substr(i, front.length) : kReplacement;
    i += front.length;
  }
  pending_.erase(0, i);
  return out;
}

std::string Utf8Stream::finish() {
  const bool begun = !pending_.empty();
  pending_.clear();
  return std::string(begun ? kReplacement : std::string_view());
}

std::string to_text(std::string_view bytes) {
  Utf8Stream stream;
  std::string text = stream.push(bytes);
  return text += stream.finish();
}

std::string compose_nfc(std::string_view text) {
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &composed, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(composed, &std::free);
  if (length < 0) throw Error(std::string("the text cannot be normalized: ") + utf8proc_errmsg(length));
  return std::string(reinterpret_cast<const char*>(composed), static_cast<size_t>(length));
}

}  // namespace mkrt::cli
