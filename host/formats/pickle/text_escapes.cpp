#include "host/formats/pickle/text_escapes.hpp"

#include <charconv>

#include "host/base/error.hpp"
#include "host/base/utf8.hpp"

namespace cbk::pickle {
namespace {

/// The number given by exactly `count` hexadecimal digits at the start of `text`.
uint32_t hex_number(std::string_view text, size_t count) {
  uint32_t number = 0;
  const std::string_view digits = text.substr(0, count);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
  if (digits.size() < count || error != std::errc{} || end != digits.data() + count)
    fail(Errc::format, "an escape without {} hexadecimal digits", count);
  return number;
}

constexpr std::string_view escape_letters = "\\'\"abfnrtv";
constexpr std::string_view escape_values = "\\'\"\a\b\f\n\r\t\v";

bool is_octal(char c) {
  return c >= '0' && c <= '7';
}

}  // namespace

std::string decode_unicode_line(std::string_view line) {
  std::string out;
  for (size_t i = 0; i < line.size();) {
    const char kind = line[i] == '\\' && i + 1 < line.size() ? line[i + 1] : '\0';
    if (kind == 'u' || kind == 'U') {
      const size_t digits = kind == 'u' ? 4 : 8;
      const uint32_t character = hex_number(line.substr(i + 2), digits);
      if (character > 0x10FFFF) fail(Errc::format, "the escape of a character beyond Unicode");
      append_utf8(out, character);
      i += 2 + digits;
    } else {
      // A backslash before another one does not begin an escape, and neither does the second.
      const size_t count = kind == '\\' ? 2 : 1;
      for (const char c : line.substr(i, count)) append_utf8(out, static_cast<unsigned char>(c));
      i += count;
    }
  }
  return out;
}

std::string decode_string_line(std::string_view line) {
  std::string out;
  for (size_t i = 0; i < line.size();) {
    if (line[i] != '\\') {
      out += line[i++];
      continue;
    }
    if (++i == line.size()) fail(Errc::format, "a text that ends within an escape");
    if (const size_t known = escape_letters.find(line[i]); known != std::string_view::npos) {
      out += escape_values[known];
      ++i;
    } else if (line[i] == 'x') {
      out += static_cast<char>(hex_number(line.substr(i + 1), 2));
      i += 3;
    } else if (is_octal(line[i])) {
      unsigned value = 0;
      for (size_t end = i + 3; i < end && i < line.size() && is_octal(line[i]); ++i)
        value = value * 8 + static_cast<unsigned>(line[i] - '0');
      out += static_cast<char>(value);
    } else {
      out += '\\';
      out += line[i++];
    }
  }
  return out;
}

}  // namespace cbk::pickle
