// JSON text to Value.
#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "host/base/utf8.hpp"
#include "host/value/json.hpp"

namespace cbk {
namespace {

constexpr size_t max_depth = 500;

/// Walks the text and leaves the furthest position where an error can find it.
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

/// "line 3, column 14" of a byte of `text`; a column is a character.
std::string place_of(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const size_t line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  const auto is_character = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  const auto column =
      std::count_if(before.begin() + static_cast<ptrdiff_t>(line_start), before.end(), is_character);
  return fmt::format("line {}, column {}", line, column + 1);
}

/// What the parser cannot read as a number: NaN and Infinity, and whole numbers beyond what a double can
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

/// The text in the words of the parser (offsets stay right): each special number is an empty string literal
/// and blanks, each escape of a lone surrogate is \u0000. What they were is kept by the ordinal of the
/// literal among all of them.
struct Prepared {
  std::string_view text;
  std::string rewritten;
  std::map<size_t, Value> specials;
  std::map<size_t, std::vector<uint32_t>> units;  // what each \u0000 of a literal with lone surrogates was

  std::string& copy() {
    if (rewritten.empty()) rewritten = text;
    return rewritten;
  }
};

/// The code unit of the escape "\uXXXX" at `at`.
std::optional<uint32_t> escaped_unit(std::string_view text, size_t at) {
  uint32_t unit = 0;
  if (text.size() - at < 6 || !text.substr(at).starts_with("\\u")) return std::nullopt;
  const char* end = text.data() + at + 6;
  const auto [stop, error] = std::from_chars(text.data() + at + 2, end, unit, 16);
  return error == std::errc{} && stop == end ? std::optional(unit) : std::nullopt;
}

/// Steps over the literal whose quote is at `at` and takes note of its lone surrogates.
size_t prepare_literal(Prepared& out, size_t at, size_t ordinal) {
  const std::string_view text = out.text;
  std::vector<uint32_t> units;
  bool has_lone = false;
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
    if (is_lone) out.copy().replace(i + 2, 4, "0000");
    if (is_lone || unit == 0U) units.push_back(*unit);
    has_lone |= is_lone;
    i += unit ? 6 : 2;
  }
  if (has_lone) out.units.emplace(ordinal, std::move(units));
  return i + 1;
}

Prepared prepare(std::string_view text, bool python) {
  Prepared out;
  out.text = text;
  const auto in_token = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '+' || c == '.';
  };
  size_t strings = 0;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '"' && python) {
      i = prepare_literal(out, i, strings++);
    } else if (text[i] == '"') {
      ++strings;
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        if (text[i] == '\\') ++i;
      }
      ++i;
    } else if (in_token(text[i])) {
      size_t end = i;
      while (end < text.size() && in_token(text[end])) ++end;
      if (auto special = special_number(text.substr(i, end - i), python)) {
        out.copy().replace(i, end - i, "\"\"" + std::string(end - i - 2, ' '));
        out.specials.emplace(strings++, std::move(*special));
      }
      i = end;
    } else {
      ++i;
    }
  }
  if (!out.rewritten.empty()) out.text = out.rewritten;
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

  Builder(const Prepared& prepared, const JsonReadOptions& options, const char* const* position)
      : prepared_(prepared), options_(options), position_(position) {}

  bool null() { return add(Value()); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(number_integer_t value) { return add(Value(static_cast<int64_t>(value))); }
  bool number_unsigned(number_unsigned_t value) {
    if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return add(static_cast<int64_t>(value));
    return add(Value::integer(std::to_string(value)));
  }
  bool number_float(number_float_t value, const string_t& spelling) {
    if (spelling.find_first_of(".eE") == std::string::npos) return add(Value::integer(spelling));
    if (!options_.keep_spelling) return add(Value(value));
    return add(Real{value, std::make_shared<const std::string>(spelling)});
  }
  bool string(string_t& value) {
    const auto special = prepared_.specials.find(strings_);
    restore(value);
    return add(special == prepared_.specials.end() ? Value(std::move(value)) : special->second);
  }
  bool binary(binary_t& /*value*/) { return false; }  // JSON text has none
  bool start_object(size_t /*count*/) { return open(Value::dict()); }
  bool start_array(size_t /*count*/) { return open(Value::list()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(string_t& name) {
    if (prepared_.specials.contains(strings_)) fail_here("a number cannot be a key; write it in quotes");
    restore(name);
    Frame& frame = stack_.back();
    const bool looks = options_.reject_duplicates || options_.warn;
    if (looks && frame.container.as_dict().find(std::string_view(name)) != nullptr) {
      const std::string message = "the key " + quote(name) + " stands twice in one object";
      if (options_.reject_duplicates) fail_here(message);
      options_.warn(at_here(message + "; this one counts"));
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

  Value take() { return std::move(root_); }

 private:
  struct Frame {
    Value container;
    std::string key;  // the one that waits for its value
  };

  [[nodiscard]] std::string at_here(const std::string& message) const {
    const auto offset = static_cast<size_t>(*position_ - prepared_.text.data());
    return place_of(prepared_.text, offset > 0 ? offset - 1 : 0) + ": " + message;
  }
  [[noreturn]] void fail_here(const std::string& message) const {
    throw Error(Errc::format, at_here(message));
  }

  /// Puts the lone surrogates of this literal back, and goes on to the next one.
  void restore(std::string& text) {
    const auto units = prepared_.units.find(strings_++);
    if (units == prepared_.units.end()) return;
    std::string out;
    size_t next = 0;
    for (const char c : text) {
      if (c == '\0')
        append_utf8(out, units->second.at(next++));
      else
        out += c;
    }
    text = std::move(out);
  }

  bool add(Value value) {
    if (++values_ > options_.max_values) fail_here(fmt::format("more than {} values", options_.max_values));
    if (stack_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Frame& frame = stack_.back();
    if (frame.container.is(Value::Kind::dict)) {
      frame.container.as_dict().set(Value(std::move(frame.key)), std::move(value));
    } else {
      frame.container.as_sequence().items.push_back(std::move(value));
    }
    return true;
  }

  bool open(Value container) {
    if (stack_.size() >= max_depth) fail_here(fmt::format("nested deeper than {} levels", max_depth));
    add(container);
    stack_.push_back({std::move(container), {}});
    return true;
  }

  bool close() {
    stack_.pop_back();
    return true;
  }

  const Prepared& prepared_;
  const JsonReadOptions& options_;
  const char* const* position_;
  size_t strings_ = 0;
  uint64_t values_ = 0;
  std::vector<Frame> stack_;
  Value root_;
};

}  // namespace

Value parse_json(std::string_view text, const JsonReadOptions& options) {
  // The parser takes a NUL for the end of its input; JSON has none anywhere.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail(Errc::format, "a NUL byte at offset {} of a JSON text", nul);
  }
  const Prepared prepared = prepare(text, options.python);
  const char* position = prepared.text.data();
  Builder builder(prepared, options, &position);
  const char* end = prepared.text.data() + prepared.text.size();
  nlohmann::json::sax_parse(Cursor{prepared.text.data(), &position}, Cursor{end, &position}, &builder);
  return builder.take();
}

}  // namespace cbk
