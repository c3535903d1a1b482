#include "host/config/yaml_quoted.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "host/base/error.hpp"
#include "host/base/utf8.hpp"

namespace cbk::yaml {
namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}
bool is_break(char c) {
  return c == '\n' || c == '\r';
}

constexpr size_t pair_size = std::string_view("\\ud83d\\ude00").size();

/// Whether `\uDhhh` is at `at`, one of `digits` after the D; `first` is d, or the letter that hides it.
bool is_half(std::string_view text, size_t at, char first, std::string_view digits) {
  const auto lower = [&](size_t i) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(text[at + i])));
  };
  return at + pair_size / 2 <= text.size() && text[at] == '\\' && text[at + 1] == 'u' && lower(2) == first &&
         digits.find(lower(3)) != std::string_view::npos &&
         std::isxdigit(static_cast<unsigned char>(text[at + 4])) != 0 &&
         std::isxdigit(static_cast<unsigned char>(text[at + 5])) != 0;
}

bool is_pair(std::string_view text, size_t at, char first) {
  return is_half(text, at, first, "89ab") && is_half(text, at + pair_size / 2, first, "cdef");
}

constexpr char hidden = 'e';  // U+E800 to U+EFFF are characters like others

/// The text with `step` added to the first letter of each half of a pair. Pairs begin with `first`.
std::string with_pairs_moved(std::string text, char first, int step) {
  for (size_t at = text.find('\\'); at != std::string::npos; at = text.find('\\', at + 1)) {
    if (!is_pair(text, at, first)) continue;
    for (const size_t half : {at, at + pair_size / 2})
      text[half + 2] = static_cast<char>(text[half + 2] + step);
  }
  return text;
}

class Decoder {
 public:
  Decoder(std::string_view source, size_t offset) : source_(source), at_(offset) {}

  /// The position where the scalar itself begins.
  size_t start() {
    skip_properties();
    return at_;
  }

  std::optional<std::string> run() {
    skip_properties();
    if (at_ >= source_.size() || (peek() != '"' && peek() != '\'')) return std::nullopt;
    const char quote = source_[at_++];
    while (!closes(quote)) {
      if (is_blank(peek()) || is_break(peek())) {
        fold();
      } else if (quote == '"' && peek() == '\\') {
        ++at_;
        escape();
      } else {
        out_ += source_[at_++];
      }
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] char peek() const {
    if (at_ >= source_.size()) fail(Errc::format, "a quote is never closed");
    return source_[at_];
  }

  /// Tags and anchors, with the blanks, line ends and comments around them.
  void skip_properties() {
    while (at_ < source_.size()) {
      const char c = source_[at_];
      if (is_blank(c) || is_break(c)) {
        ++at_;
      } else if (c == '#') {
        while (at_ < source_.size() && !is_break(source_[at_])) ++at_;
      } else if (c == '&' || c == '!') {
        while (at_ < source_.size() && !is_blank(source_[at_]) && !is_break(source_[at_])) ++at_;
      } else {
        return;
      }
    }
  }

  /// Skips the closing quote; two single quotes are one in the text.
  bool closes(char quote) {
    while (peek() == quote) {
      ++at_;
      const bool doubled = quote == '\'' && at_ < source_.size() && source_[at_] == quote;
      if (!doubled) return true;
      out_ += quote;
      ++at_;
    }
    return false;
  }

  void step_over_break() {
    if (source_[at_] == '\r' && at_ + 1 < source_.size() && source_[at_ + 1] == '\n') ++at_;
    ++at_;
  }

  /// Counts blank lines and skips the blanks before the next text; each blank line is a line end.
  size_t blank_lines() {
    size_t count = 0;
    while (true) {
      while (is_blank(peek())) ++at_;
      if (!is_break(peek())) return count;
      step_over_break();
      ++count;
    }
  }

  /// Keeps blanks unless a line ends after them; one line end is a space.
  void fold() {
    const size_t start = at_;
    while (is_blank(peek())) ++at_;
    if (!is_break(peek())) {
      out_ += source_.substr(start, at_ - start);
      return;
    }
    step_over_break();
    const size_t lines = blank_lines();
    out_ += lines == 0 ? " " : std::string(lines, '\n');
  }

  void escape() {
    const char c = peek();
    if (is_break(c)) {
      step_over_break();
      out_ += std::string(blank_lines(), '\n');
      return;
    }
    ++at_;
    constexpr std::string_view letters = "0abt\tnvfre \"\\/";
    constexpr std::string_view meanings("\0\a\b\t\t\n\v\f\r\x1b \"\\/", 14);
    const size_t letter = letters.find(c);
    if (letter != std::string_view::npos) {
      out_ += meanings[letter];
    } else if (c == 'N' || c == '_') {
      append_utf8(out_, c == 'N' ? 0x85 : 0xA0);
    } else if (c == 'L' || c == 'P') {
      append_utf8(out_, c == 'L' ? 0x2028 : 0x2029);
    } else {
      hexadecimal(c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0);
    }
  }

  void hexadecimal(size_t digits) {
    const std::string_view text = source_.substr(at_, digits);
    uint32_t character = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), character, 16);
    const bool ok =
        digits > 0 && error == std::errc{} && end == text.data() + digits && text.size() == digits;
    if (digits == 4 && is_pair(source_, at_ - 2, 'd')) {
      uint32_t low = 0;
      std::from_chars(source_.data() + at_ + 6, source_.data() + at_ + 10, low, 16);
      append_utf8(out_, 0x10000 + ((character - 0xD800) << 10) + (low - 0xDC00));
      at_ += pair_size - 2;
      return;
    }
    if (!ok || character > 0x10FFFF || is_surrogate(character)) {
      fail(Errc::format, "\\{} is not an escape of YAML", source_.substr(at_ - 1, digits + 1));
    }
    append_utf8(out_, character);
    at_ += digits;
  }

  std::string_view source_;
  size_t at_;
  std::string out_;
};

}  // namespace

std::optional<std::string> decode_quoted(std::string_view source, size_t offset) {
  return Decoder(source, offset).run();
}

std::optional<std::string> hide_surrogates(std::string_view source) {
  bool has_pair = false;
  for (size_t at = source.find('\\'); at != std::string_view::npos; at = source.find('\\', at + 1)) {
    if (is_pair(source, at, hidden)) return std::nullopt;
    has_pair = has_pair || is_pair(source, at, 'd');
  }
  if (!has_pair) return std::nullopt;
  return with_pairs_moved(std::string(source), 'd', hidden - 'd');
}

std::string restore_surrogates(std::string text) {
  return with_pairs_moved(std::move(text), hidden, 'd' - hidden);
}

std::optional<std::string> end_folded(std::string_view source, size_t offset, std::string_view text) {
  std::string_view rest = source.substr(Decoder(source, offset).start());
  const auto take_line = [&] {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    return line;
  };
  const std::string_view header =
      take_line().substr(0, 3);  // ">", an indent and what becomes of the last line ends
  if (!header.starts_with('>')) return std::nullopt;
  const size_t text_end = text.find_last_not_of('\n') + 1;
  size_t indent = std::string_view::npos;  // of the block: that of its first line
  size_t ends = 0;                         // from that of its last line on
  bool is_cut_off = false;                 // by the end of the file, in a line of blanks
  while (!rest.empty()) {
    const size_t before = rest.size();
    const std::string_view line = take_line();
    const size_t end = before - rest.size() - line.size();  // 0 in the last line of a text without one
    const size_t first = line.find_first_not_of(" \r");
    if (first == std::string_view::npos) {
      ends += end;
      is_cut_off = end == 0;
      continue;
    }
    if (text_end == 0) break;  // there is nothing but line ends in the block
    if (indent == std::string_view::npos) indent = first;
    if (first < indent || (first == 0 && (line.starts_with("---") || line.starts_with("...")))) break;
    ends = end;
  }
  std::string out(text.substr(0, text_end));
  if (is_cut_off && out.ends_with(' ')) out.pop_back();
  if (header.find('+') != std::string_view::npos) return out + std::string(ends, '\n');
  const bool has_end = ends > 0 && !out.empty() && header.find('-') == std::string_view::npos;
  return has_end ? out + '\n' : out;
}

}  // namespace cbk::yaml
