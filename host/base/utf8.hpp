// UTF-8, one character at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cbk {

/// Decodes the character at `i` and advances; returns nothing (and stays) if the bytes are not UTF-8.
/// Surrogates are accepted, as Python's "surrogatepass" allows them in pickles.
inline std::optional<uint32_t> decode_utf8(std::string_view text, size_t& i) {
  const auto byte = [&](size_t k) -> uint32_t { return static_cast<unsigned char>(text[k]); };
  const uint32_t lead = byte(i);
  if (lead < 0x80) {
    ++i;
    return lead;
  }
  const size_t length = (lead & 0xE0) == 0xC0 ? 2 : (lead & 0xF0) == 0xE0 ? 3 : (lead & 0xF8) == 0xF0 ? 4 : 0;
  if (length == 0 || text.size() - i < length) return std::nullopt;
  uint32_t character = lead & (0x7FU >> length);
  for (size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xC0) != 0x80) return std::nullopt;
    character = character << 6 | (byte(i + k) & 0x3FU);
  }
  constexpr std::array<uint32_t, 5> smallest = {0, 0, 0x80, 0x800, 0x10000};
  if (character < smallest.at(length) || character > 0x10FFFF) return std::nullopt;
  i += length;
  return character;
}

/// `character` must be one of Unicode (at most 0x10FFFF).
inline void append_utf8(std::string& out, uint32_t character) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (character >> shift & 0x3F)); };
  if (character < 0x80) {
    out += static_cast<char>(character);
  } else if (character < 0x800) {
    out += static_cast<char>(0xC0 | character >> 6);
    tail(0);
  } else if (character < 0x10000) {
    out += static_cast<char>(0xE0 | character >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | character >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

/// Accepts surrogates.
inline bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (!decode_utf8(text, i)) return false;
  }
  return true;
}

inline bool is_surrogate(uint32_t character) {
  return character >= 0xD800 && character <= 0xDFFF;
}

/// Characters that a terminal draws as nothing, that turn the direction of what follows, or that separate
/// lines: Unicode's default ignorable code points and format characters, and U+2028, U+2029, U+2800.
inline bool is_invisible(uint32_t character) {
  struct Range {
    uint32_t first, last;
  };
  constexpr std::array<Range, 26> ranges = {
      {{0x00AD, 0x00AD},   {0x034F, 0x034F},   {0x0600, 0x0605},   {0x061C, 0x061C},   {0x06DD, 0x06DD},
       {0x070F, 0x070F},   {0x0890, 0x0891},   {0x08E2, 0x08E2},   {0x115F, 0x1160},   {0x17B4, 0x17B5},
       {0x180B, 0x180F},   {0x200B, 0x200F},   {0x2028, 0x202E},   {0x2060, 0x206F},   {0x2800, 0x2800},
       {0x3164, 0x3164},   {0xFE00, 0xFE0F},   {0xFEFF, 0xFEFF},   {0xFFA0, 0xFFA0},   {0xFFF0, 0xFFFB},
       {0x110BD, 0x110BD}, {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
       {0xE0000, 0xE0FFF}}};
  return std::ranges::any_of(
      ranges, [&](const Range& range) { return range.first <= character && character <= range.last; });
}

/// Whether a terminal shows the character unchanged: no control, nothing invisible, nothing that changes the
/// direction or breaks a line.
inline bool is_plain(uint32_t character) {
  if (character < 0x7F) return character >= 0x20;
  return character > 0x9F && !is_surrogate(character) && !is_invisible(character);
}

/// Standard UTF-8, without surrogates.
inline bool is_strict_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto character = decode_utf8(text, i);
    if (!character || is_surrogate(*character)) return false;
  }
  return true;
}

/// A high surrogate and a low one behind it, as two characters: UTF-16 (and JSON's escapes) would make them
/// one.
inline bool has_split_pair(std::string_view text) {
  bool after_high = false;
  for (size_t i = 0; i < text.size();) {
    const auto character = decode_utf8(text, i);
    if (!character) return false;
    if (after_high && *character >= 0xDC00 && *character <= 0xDFFF) return true;
    after_high = *character >= 0xD800 && *character <= 0xDBFF;
  }
  return false;
}

}  // namespace cbk
