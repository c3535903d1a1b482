// JSON text to Value.
#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "host/base/utf8.hpp"
#include "host/value/json.hpp"
#include "host/value/repeated_keys.hpp"
#include "host/value/tree_memory.hpp"

namespace cbk {
namespace {

constexpr size_t deepest_read = 500;

/// Walks the text and records the furthest position, for errors.
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at = nullptr;
  const char** furthest = nullptr;

  reference operator*() const { return *at; }
  Cursor& operator++() {
    *furthest = ++at;
    return *this;
  }
  bool operator==(const Cursor& other) const { return at == other.at; }
  bool operator!=(const Cursor& other) const { return at != other.at; }
};

/// "line 3, column 14" of a byte of `text`; columns count characters.
std::string place_of(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const size_t line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  const auto is_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  const auto column =
      std::count_if(before.begin() + static_cast<ptrdiff_t>(line_start), before.end(), is_character);
  return fmt::format("line {}, column {}", line, column + 1);
}

/// Numbers that the parser cannot read: NaN and Infinity, and whole numbers beyond what a double can
/// hold.
std::optional<Value> special_number(std::string_view token, bool python) {
  if (python) {
    if (token == "NaN") return Value(std::numeric_limits<double>::quiet_NaN());
    if (token == "Infinity") return Value(std::numeric_limits<double>::infinity());
    if (token == "-Infinity") return Value(-std::numeric_limits<double>::infinity());
  }
  constexpr size_t always_finite = 300;
  if (token.size() < always_finite) return std::nullopt;
  const std::string_view digits = token.substr(token.front() == '-' ? 1 : 0);
  const bool is_whole =
      std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  return is_whole && digits.front() != '0' ? std::optional(Value::integer(token)) : std::nullopt;
}

/// The code unit of the escape "\uXXXX" at `at`.
std::optional<uint32_t> escaped_unit(std::string_view text, size_t at) {
  uint32_t unit = 0;
  if (text.size() - at < 6 || !text.substr(at).starts_with("\\u")) return std::nullopt;
  const char* end = text.data() + at + 6;
  const auto [stop, error] = std::from_chars(text.data() + at + 2, end, unit, 16);
  return error == std::errc{} && stop == end ? std::optional(unit) : std::nullopt;
}

/// Calls `visit(position, unit, is_lone)` for each escape of U+0000 or of a lone surrogate in the literal
/// with its quote at `at`, and returns the position after the literal.
template <typename Visit>
size_t each_unit(std::string_view text, size_t at, Visit&& visit) {
  size_t i = at + 1;
  while (i < text.size() && text[i] != '"') {
    if (text[i] != '\\') {
      ++i;
      continue;
    }
    const auto unit = escaped_unit(text, i);
    const bool is_lone = unit && is_surrogate(*unit);
    if (is_lone && *unit < 0xDC00) {
      const auto next = i + 6 <= text.size() ? escaped_unit(text, i + 6) : std::nullopt;
      if (next && *next >= 0xDC00 && *next <= 0xDFFF) {
        i += 12;
        continue;
      }
    }
    if (is_lone || unit == 0U) visit(i, *unit, is_lone);
    i += unit ? 6 : 2;
  }
  return i + 1;
}

bool in_token(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '+' ||
         c == '.';
}

/// The word or number that begins at `at`.
std::string_view token_at(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && in_token(text[end])) ++end;
  return text.substr(at, end - at);
}

/// The text with only numbers and words that the parser supports; positions are kept. Each special number
/// becomes an empty string literal and blanks, each escape of a lone surrogate \u0000. Nothing if the text
/// needs no change.
std::optional<std::string> reworded(std::string_view text, bool python) {
  std::optional<std::string> out;
  const auto copy = [&]() -> std::string& { return out ? *out : out.emplace(text); };
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '"') {
      i = each_unit(text, i, [&](size_t at, uint32_t /*unit*/, bool is_lone) {
        if (python && is_lone) copy().replace(at + 2, 4, "0000");
      });
    } else if (in_token(text[i])) {
      const std::string_view token = token_at(text, i);
      if (special_number(token, python))
        copy().replace(i, token.size(), "\"\"" + std::string(token.size() - 2, ' '));
      i += token.size();
    } else {
      ++i;
    }
  }
  return out;
}

/// Builds the tree from the parser's events.
class Builder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  /// `parsed` is the text for the parser, which is at `position` in it.
  Builder(std::string_view original, std::string_view parsed, const JsonReadOptions& options,
          const char* const* position)
      : original_(original),
        parsed_(parsed),
        options_(options),
        position_(position),
        repeated_(options.warn) {}

  bool null() { return add(Value()); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(number_integer_t value) { return add(Value(static_cast<int64_t>(value))); }
  bool number_unsigned(number_unsigned_t value) {
    if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return add(static_cast<int64_t>(value));
    return add_digits(std::to_string(value));
  }
  bool number_float(number_float_t value, const string_t& spelling) {
    if (spelling.find_first_of(".eE") == std::string::npos) return add_digits(spelling);
    if (!options_.keep_spelling) return add(Value(value));
    charge(sizeof(std::string) + TreeMemory::beside(spelling));
    return add(Real{value, std::make_shared<const std::string>(spelling)});
  }
  bool string(string_t& value) {
    const size_t begin = next_literal();
    if (original_[begin] != '"') return add_special(token_at(original_, begin));
    restore(value, begin);
    charge(TreeMemory::beside(value));
    return add(Value(std::move(value)));
  }
  bool binary(binary_t& /*value*/) { return false; }  // JSON text has none
  bool start_object(size_t /*count*/) { return open(Value::dict()); }
  bool start_array(size_t /*count*/) { return open(Value::list()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(string_t& name) {
    const size_t begin = next_literal();
    if (original_[begin] != '"') fail_here("a number cannot be a key; write it in quotes");
    restore(name, begin);
    charge(TreeMemory::beside(name));
    Frame& frame = stack_.back();
    const bool looks = options_.reject_duplicates || options_.warn;
    if (looks && frame.container.as_dict().find(std::string_view(name)) != nullptr) {
      const auto message = [&] { return "the key " + quote(name) + " is repeated in one object"; };
      if (options_.reject_duplicates) fail_here(message());
      repeated_.add([&] { return at_here(message() + "; this value is used"); });
    }
    frame.key = std::move(name);
    return true;
  }
  bool parse_error(size_t /*position*/, const std::string& token, const nlohmann::json::exception& error) {
    std::string_view reason = error.what();
    if (error.id == 406) fail_here("the number " + quote(token, 60) + " is too large for a float");
    // "[…] parse error at line 1, column 2: syntax error while parsing value - invalid literal; last read:
    // 'x'; expected y"
    const size_t start = reason.find("syntax error ");
    if (start != std::string_view::npos) reason.remove_prefix(start);
    const size_t read = reason.find("; last read: ");
    const size_t expected = reason.rfind("; expected ");
    std::string message(reason.substr(0, std::min<size_t>(read, 300)));
    if (read != std::string_view::npos) {
      message += " at " + quote(token, 40);
      if (expected != std::string_view::npos && expected > read) message += reason.substr(expected, 80);
    }
    fail_here(message);
  }

  Value take() {
    repeated_.finish();
    return std::move(root_);
  }

 private:
  struct Frame {
    Value container;
    std::string key;  // the one that waits for its value
  };

  [[nodiscard]] size_t offset() const { return static_cast<size_t>(*position_ - parsed_.data()); }
  [[nodiscard]] std::string at_here(const std::string& message) const {
    return place_of(original_, offset() > 0 ? offset() - 1 : 0) + ": " + message;
  }
  [[noreturn]] void fail_here(const std::string& message) const {
    throw Error(Errc::format, at_here(message));
  }

  void charge(uint64_t bytes) {
    try {
      memory_.charge(bytes);
    } catch (const Error& error) {
      fail_here(error.what());
    }
  }

  /// The beginning of the literal that the parser has just read.
  size_t next_literal() { return parsed_.find('"', std::exchange(literals_end_, offset())); }

  /// Restores the lone surrogates of the literal at `begin`.
  void restore(std::string& text, size_t begin) const {
    if (text.find('\0') == std::string::npos) return;
    std::vector<uint32_t> units;
    each_unit(original_, begin,
              [&](size_t /*at*/, uint32_t unit, bool /*is_lone*/) { units.push_back(unit); });
    std::string out;
    size_t next = 0;
    for (const char c : text) {
      if (c == '\0')
        append_utf8(out, units.at(next++));
      else
        out += c;
    }
    text = std::move(out);
  }

  bool add_digits(std::string_view digits) {
    charge(sizeof(std::string) + TreeMemory::beside(digits));
    return add(Value::integer(digits));
  }
  bool add_special(std::string_view token) {
    if (token.size() > std::string_view("-Infinity").size()) return add_digits(token);
    return add(*special_number(token, options_.python));
  }

  bool add(Value value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Frame& frame = stack_.back();
    const bool is_dict = frame.container.is(Value::Kind::dict);
    charge(is_dict ? TreeMemory::entry : TreeMemory::item);
    if (is_dict) {
      frame.container.as_dict().set(Value(std::move(frame.key)), std::move(value));
    } else {
      frame.container.as_sequence().items.push_back(std::move(value));
    }
    return true;
  }

  bool open(Value container) {
    if (stack_.size() >= deepest_read) fail_here(fmt::format("nested deeper than {} levels", deepest_read));
    if (stack_.size() == 1) {
      member_ = stack_.front().key;
      member_start_ = memory_.spent();
    }
    charge(TreeMemory::container);
    add(container);
    stack_.push_back({std::move(container), {}});
    return true;
  }

  bool close() {
    const Value closed = std::move(stack_.back().container);
    stack_.pop_back();
    const bool is_member = stack_.size() == 1 && stack_.front().container.is(Value::Kind::dict);
    if (is_member && options_.take_member) {
      options_.take_member(member_, closed);
      stack_.front().container.as_dict().set(member_, Value());
      memory_.refund(memory_.spent() - member_start_);
      charge(TreeMemory::entry);
    }
    return true;
  }

  std::string_view original_;
  std::string_view parsed_;
  const JsonReadOptions& options_;
  const char* const* position_;
  RepeatedKeys repeated_;
  size_t literals_end_ = 0;    // of the last one
  std::string member_;         // of the top object, which is open
  uint64_t member_start_ = 0;  // what was spent before it
  TreeMemory memory_{original_.size(), options_.file_size};
  std::vector<Frame> stack_;
  Value root_;
};

}  // namespace

Value parse_json(std::string_view text, const JsonReadOptions& options) {
  // The parser treats a NUL as the end of its input; JSON never contains one.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail(Errc::format, "a NUL byte at offset {} of a JSON text", nul);
  }
  const std::optional<std::string> other_words = reworded(text, options.python);
  const std::string_view parsed = other_words ? std::string_view(*other_words) : text;
  const char* position = parsed.data();
  Builder builder(text, parsed, options, &position);
  const char* end = parsed.data() + parsed.size();
  nlohmann::json::sax_parse(Cursor{parsed.data(), &position}, Cursor{end, &position}, &builder);
  return builder.take();
}

}  // namespace cbk
