#include <algorithm>

#include "host/base/utf8.hpp"
#include "host/config/yaml.hpp"
#include "host/config/yaml_scalar.hpp"
#include "host/value/number.hpp"

namespace cbk::yaml {
namespace {

constexpr size_t deepest_written = 400;
constexpr size_t max_output = 1ULL << 28;
constexpr size_t longest_simple_key = 1000;  // readers give up at 1024 characters

/// Other characters are escaped.
bool is_plain_character(uint32_t c) {
  if (c == '\t') return true;
  if (c < 0x20 || c == 0x7F || is_surrogate(c)) return false;
  return c < 0x80 || (c > 0xA0 && c != 0x2028 && c != 0x2029 && c != 0xFEFF && (c & 0xFFFE) != 0xFFFE);
}

struct Looks {
  bool printable = true;  // no character needs an escape, line ends aside
  bool line_ends = false;
};

Looks look_at(std::string_view text) {
  Looks looks;
  for (size_t i = 0; i < text.size();) {
    const auto character = decode_utf8(text, i);
    if (!character) fail(Errc::value, "text that is not UTF-8: {}", quote(text, 40));
    if (*character == '\n') {
      looks.line_ends = true;
    } else if (!is_plain_character(*character)) {
      looks.printable = false;
    }
  }
  return looks;
}

bool can_be_plain(std::string_view text) {
  if (text.empty() || text.front() == ' ' || text.back() == ' ' || text.back() == ':') return false;
  if (std::string_view("-?:,[]{}#&*!|>'\"%@`").find(text.front()) != std::string_view::npos) return false;
  if (text.find(": ") != std::string_view::npos || text.find(" #") != std::string_view::npos) return false;
  return text.find('\t') == std::string_view::npos && !text.starts_with("...") && !is_ambiguous(text);
}

/// Whether a text can be a literal block: every line must keep its form, without blank lines at the ends and
/// with at most one newline at the end.
bool can_be_literal(std::string_view text) {
  if (text.front() == ' ' || text.front() == '\t' || text.front() == '\n') return false;
  if (text.find('\t') != std::string_view::npos) return false;
  for (size_t i = text.find('\n'); i != std::string_view::npos; i = text.find('\n', i + 1)) {
    if (text[i - 1] == ' ') return false;
  }
  return text.back() != ' ' && !text.ends_with("\n\n");
}

std::string single_quoted(std::string_view text) {
  std::string out = "'";
  for (char c : text) {
    out += c;
    if (c == '\'') out += c;
  }
  return out + "'";
}

std::string double_quoted(std::string_view text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const uint32_t c = *decode_utf8(text, i);
    if (is_surrogate(c)) fail(Errc::value, "YAML cannot hold the surrogate U+{:04X}", c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_plain_character(c)) {
      out += text.substr(start, i - start);
    } else {
      out += c <= 0xFF     ? fmt::format("\\x{:02X}", c)
             : c <= 0xFFFF ? fmt::format("\\u{:04X}", c)
                           : fmt::format("\\U{:08X}", c);
    }
  }
  return out + "\"";
}

std::string base_64(std::string_view bytes) {
  constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) out += k <= count ? alphabet[bits >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

/// A form that PyYAML also reads as a float, unless the spelling came from YAML.
std::string float_text(const Real& real) {
  if (real.spelling) {
    const ScalarKind kind = classify(*real.spelling);
    const bool ours = kind == ScalarKind::real || kind == ScalarKind::exponent_real;
    if (is_pyyaml_float(*real.spelling) || (real.from_yaml && ours)) return *real.spelling;
  }
  std::string text = float_repr(real.value);
  if (text == "nan" || text == "inf") return "." + text;
  if (text == "-inf") return "-.inf";
  const size_t e = text.find('e');
  if (e != std::string::npos && text.find('.') == std::string::npos) text.insert(e, ".0");
  return text;
}

std::string integer_text(const Integer& integer) {
  if (!integer.fits) return *integer.digits;
  if (integer.digits && classify(*integer.digits) == ScalarKind::integer) return *integer.digits;
  return std::to_string(integer.value);
}

std::string string_text(std::string_view text) {
  const Looks looks = look_at(text);
  if (!looks.printable || looks.line_ends) return double_quoted(text);
  return can_be_plain(text) ? std::string(text) : single_quoted(text);
}

class Writer {
 public:
  Writer(std::string& out, size_t indent) : out_(out), indent_(indent) {}

  void write_root(const Value& value) {
    if (is_block(value)) {
      if (!tag_of(value).empty()) out_ += tag_of(value).substr(1) + "\n";
      write_block(value, 0, false);
      return;
    }
    out_ += scalar(value);
    out_ += '\n';
  }

 private:
  static bool is_map(const Value& value) { return value.is(Value::Kind::dict); }
  static bool is_set(const Value& value) {
    return value.is(Value::Kind::sequence) && (value.as_sequence().kind == Sequence::Kind::set ||
                                               value.as_sequence().kind == Sequence::Kind::frozenset);
  }
  static bool is_key(const Value& value) {
    return !value.is(Value::Kind::sequence) && !value.is(Value::Kind::dict) && !value.is(Value::Kind::tensor);
  }
  /// Whether a value is a list of (key, value) tuples, which is how !!omap and !!pairs are read.
  static bool is_pairs(const Value& value) {
    if (!value.is(Value::Kind::sequence) || is_set(value) || value.as_sequence().items.empty()) return false;
    return std::ranges::all_of(value.as_sequence().items, [](const Value& item) {
      if (!item.is(Value::Kind::sequence)) return false;
      const Sequence& pair = item.as_sequence();
      return pair.kind == Sequence::Kind::tuple && pair.items.size() == 2 && is_key(pair.items.front());
    });
  }
  /// The tag of a container that is not empty, with a blank before it.
  static std::string tag_of(const Value& value) {
    return is_set(value) ? " !!set" : is_pairs(value) ? " !!pairs" : "";
  }
  static bool is_block(const Value& value) {
    if (is_map(value)) return !value.as_dict().empty();
    return value.is(Value::Kind::sequence) && !value.as_sequence().items.empty();
  }

  [[noreturn]] void fail_here(const std::string& what) const {
    std::string path;
    for (const std::string& part : path_) path += (path.empty() ? "" : ".") + part;
    fail(Errc::value, "{}: {} cannot be written as YAML", quote(path), what);
  }

  std::string scalar(const Value& value) const {
    switch (value.kind()) {
      case Value::Kind::none:
        return "null";
      case Value::Kind::boolean:
        return value.as_bool() ? "true" : "false";
      case Value::Kind::integer:
        return integer_text(value.as_integer());
      case Value::Kind::real:
        return float_text(value.as_real());
      case Value::Kind::string:
        return string_text(value.as_string());
      case Value::Kind::bytes:
        return "!!binary \"" + base_64(value.as_bytes().data) + "\"";
      case Value::Kind::sequence:
        return is_set(value) ? "!!set {}" : "[]";  // an empty one
      case Value::Kind::dict:
        return "{}";
      case Value::Kind::object:
        if (value.as_object().type == "datetime.date" || value.as_object().type == "datetime.datetime") {
          return value.as_object().repr;
        }
        break;
      default:
        break;
    }
    fail_here("a " + value.kind_name());
  }

  /// A container that is not empty, at column `column`; `in_line`: the cursor is already there (after a
  /// dash).
  void write_block(const Value& value, size_t column, bool in_line) {
    if (++depth_ > deepest_written)
      fail_here(fmt::format("what is nested deeper than {} levels, or holds itself,", deepest_written));
    if (out_.size() > max_output) fail_here("so much");
    bool first = in_line;
    const auto start_line = [&] {
      if (!std::exchange(first, false)) out_.append(column, ' ');
    };
    if (is_map(value)) {
      for (const auto& [key, item] : value.as_dict().entries()) {
        start_line();
        path_.push_back(key_text(key));
        write_key(key, column);
        write_value(item, column);
        path_.pop_back();
      }
    } else {
      size_t position = 0;
      const bool has_pairs = is_pairs(value);
      for (const Value& item : value.as_sequence().items) {
        start_line();
        path_.push_back(std::to_string(position++));
        if (is_set(value)) {
          out_ += "? " + scalar(item) + "\n";
        } else if (has_pairs) {
          write_pair(item.as_sequence().items, column);
        } else {
          write_item(item, column);
        }
        path_.pop_back();
      }
    }
    --depth_;
  }

  void write_key(const Value& key, size_t column) {
    if (key.is(Value::Kind::sequence) || key.is(Value::Kind::dict))
      fail_here("a " + key.kind_name() + " as a key");
    const std::string text = scalar(key);
    if (text.size() <= longest_simple_key) {
      out_ += text + ":";
      return;
    }
    out_ += "? " + text + "\n";
    out_.append(column, ' ');
    out_ += ':';
  }

  /// An element of a list of pairs: a map of one entry.
  void write_pair(const std::vector<Value>& pair, size_t column) {
    out_ += '-';
    out_.append(indent_ - 1, ' ');
    write_key(pair.front(), column + indent_);
    write_value(pair.back(), column + indent_);
  }

  /// The value after "key:".
  void write_value(const Value& value, size_t column) {
    if (!is_block(value)) {
      out_ += ' ';
      write_scalar(value, column + indent_);
    } else {
      out_ += tag_of(value) + "\n";
      write_block(value, is_map(value) || is_set(value) ? column + indent_ : column, false);
    }
  }

  /// An element of a list.
  void write_item(const Value& value, size_t column) {
    out_ += '-';
    if (!is_block(value)) {
      out_ += ' ';
      write_scalar(value, column + indent_);
    } else if (const std::string tag = tag_of(value); !tag.empty()) {
      out_ += tag + "\n";
      write_block(value, column + indent_, false);
    } else {
      out_.append(indent_ - 1, ' ');
      write_block(value, column + indent_, true);
    }
  }

  void write_scalar(const Value& value, size_t column) {
    if (value.is(Value::Kind::string)) {
      const std::string& text = value.as_string();
      const Looks looks = look_at(text);
      if (looks.line_ends && looks.printable && can_be_literal(text)) {
        write_literal(text, column);
        return;
      }
    }
    out_ += scalar(value);
    out_ += '\n';
  }

  void write_literal(std::string_view text, size_t column) {
    out_ += text.ends_with('\n') ? "|\n" : "|-\n";
    if (text.ends_with('\n')) text.remove_suffix(1);
    for (size_t start = 0; start <= text.size();) {
      const size_t end = std::min(text.find('\n', start), text.size());
      if (end > start) out_.append(column, ' ');
      out_ += text.substr(start, end - start);
      out_ += '\n';
      start = end + 1;
    }
  }

  std::string& out_;
  size_t indent_;
  size_t depth_ = 0;
  std::vector<std::string> path_;
};

}  // namespace

std::string write(const Value& value, int indent) {
  std::string out;
  Writer(out, static_cast<size_t>(indent)).write_root(value);
  return out;
}

}  // namespace cbk::yaml
