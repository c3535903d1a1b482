// Value to JSON text.
#include <algorithm>
#include <cmath>

#include "host/base/utf8.hpp"
#include "host/value/json.hpp"
#include "host/value/kind.hpp"
#include "host/value/number.hpp"
#include "host/value/unfolding.hpp"

namespace cbk {
namespace {

constexpr size_t deepest_written = 500;

void check_size(const std::string& out, const JsonWriteOptions& options) {
  if (out.size() > options.limit) fail(Errc::value, "more than {} of JSON", format_size(options.limit));
}

/// The length of the characters that stand for themselves in every kind of JSON, up to some thousand.
size_t plain_run(std::string_view text) {
  constexpr size_t most = 4096;
  text = text.substr(0, most);
  const auto is_plain_ascii = [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; };
  return static_cast<size_t>(std::ranges::find_if_not(text, is_plain_ascii) - text.begin());
}

void append_quoted(std::string& out, std::string_view text, const JsonWriteOptions& options) {
  const auto escape = [&](uint32_t unit) { out += fmt::format("\\u{:04x}", unit); };
  out += '"';
  for (size_t i = 0; i < text.size();) {
    check_size(out, options);
    if (const size_t run = plain_run(text.substr(i)); run > 0) {
      out += text.substr(i, run);
      i += run;
      continue;
    }
    const size_t start = i;
    const auto decoded = decode_utf8(text, i);
    if (!decoded) fail(Errc::value, "text that is not UTF-8 cannot be written as JSON: {}", quote(text, 40));
    const uint32_t c = *decoded;
    if (is_surrogate(c) && !options.shown) {
      if (!options.python) fail(Errc::value, "JSON cannot hold the lone surrogate U+{:04X}", c);
      if (c < 0xDC00 && has_split_pair(text.substr(start, 6)))
        fail(Errc::value, "JSON cannot hold a pair of surrogates as two characters: {}", quote(text, 40));
      escape(c);
      continue;
    }
    switch (c) {
      case '"':
        out += "\\\"";
        continue;
      case '\\':
        out += "\\\\";
        continue;
      case '\n':
        out += "\\n";
        continue;
      case '\r':
        out += "\\r";
        continue;
      case '\t':
        out += "\\t";
        continue;
      case '\f':
        out += "\\f";
        continue;
      case '\b':
        out += "\\b";
        continue;
      default:
        break;
    }
    const bool is_kept = options.ascii ? c < 0x7F : !options.shown || is_plain(c);
    if (c >= 0x20 && is_kept) {
      out += text.substr(start, i - start);
    } else if (c > 0xFFFF) {
      escape(0xD800 + ((c - 0x10000) >> 10));
      escape(0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      escape(c);
    }
  }
  out += '"';
}

/// Whether a spelling from a config (perhaps a YAML one) is a JSON number with a fraction or an exponent.
bool is_json_float(std::string_view text) {
  size_t i = text.starts_with('-') ? 1 : 0;
  const auto digits = [&] {
    const size_t start = i;
    while (i < text.size() && text[i] >= '0' && text[i] <= '9') ++i;
    return i - start;
  };
  const bool leading_zero = i < text.size() && text[i] == '0';
  const size_t whole = digits();
  if (whole == 0 || (leading_zero && whole > 1)) return false;
  bool is_float = false;
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (digits() == 0) return false;
    is_float = true;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (digits() == 0) return false;
    is_float = true;
  }
  return is_float && i == text.size();
}

class JsonWriter {
 public:
  JsonWriter(std::string& out, const JsonWriteOptions& options) : out_(out), options_(options) {}

  void write(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::none:
        out_ += "null";
        return;
      case Value::Kind::boolean:
        out_ += value.as_bool() ? "true" : "false";
        return;
      case Value::Kind::integer:
        write_integer(value.as_integer());
        return;
      case Value::Kind::real:
        write_real(value.as_real());
        return;
      case Value::Kind::string:
        append_quoted(out_, value.as_string(), options_);
        return;
      case Value::Kind::sequence:
        return unfolding_.enter(value, value.as_sequence().items.size(), [&] { write_sequence(value); });
      case Value::Kind::dict:
        return unfolding_.enter(value, value.as_dict().size(), [&] { write_dict(value.as_dict()); });
      default:
        fail(Errc::value, "{} cannot be written as JSON", value.kind_name());
    }
  }

 private:
  void write_integer(const Integer& integer) {
    if (integer.fits) {
      out_ += fmt::format_int(integer.value).str();
    } else {
      out_ += *integer.digits;
    }
  }

  void write_real(const Real& real) {
    if (std::isfinite(real.value)) {
      out_ += real.spelling && is_json_float(*real.spelling) ? *real.spelling : float_repr(real.value);
      return;
    }
    if (!options_.python) fail(Errc::value, "JSON has no spelling for {}", float_repr(real.value));
    out_ += std::isnan(real.value) ? "NaN" : real.value < 0 ? "-Infinity" : "Infinity";
  }

  void write_sequence(const Value& value) {
    const Sequence& sequence = value.as_sequence();
    using Kind = Sequence::Kind;
    if (sequence.kind != Kind::list && sequence.kind != Kind::tuple && sequence.kind != Kind::torch_size) {
      fail(Errc::value, "{} cannot be written as JSON", a_kind(value));
    }
    open('[');
    for (const Value& item : sequence.items) {
      next(&item == &sequence.items.front());
      write(item);
    }
    close(']', sequence.items.empty());
  }

  void write_dict(const Dict& dict) {
    open('{');
    bool first = true;
    for (const auto& [key, value] : dict.entries()) {
      next(first);
      first = false;
      write_key(key);
      out_ += options_.spaced ? ": " : ":";
      write(value);
    }
    close('}', dict.empty());
  }

  /// As Python: None, bools and numbers become text.
  void write_key(const Value& key) {
    if (key.is(Value::Kind::string)) {
      append_quoted(out_, key.as_string(), options_);
      return;
    }
    if (key.is(Value::Kind::sequence) || key.is(Value::Kind::bytes) || key.is(Value::Kind::tensor)) {
      fail(Errc::value, "{} cannot be a key in JSON", a_kind(key));
    }
    out_ += '"';
    write(key);
    out_ += '"';
  }

  void open(char bracket) {
    if (depth_ >= deepest_written)
      fail(Errc::value, "nested deeper than {} levels, or a value that holds itself", deepest_written);
    ++depth_;
    out_ += bracket;
  }

  void next(bool first) {
    check_size(out_, options_);
    if (!first) out_ += options_.indent >= 0 || !options_.spaced ? "," : ", ";
    line();
  }

  void close(char bracket, bool empty) {
    --depth_;
    if (!empty) line();
    out_ += bracket;
  }

  void line() {
    if (options_.indent < 0) return;
    out_ += '\n';
    out_.append(depth_ * static_cast<size_t>(options_.indent), ' ');
  }

  std::string& out_;
  const JsonWriteOptions& options_;
  Unfolding unfolding_;
  size_t depth_ = 0;
};

}  // namespace

std::string to_json(const Value& value, const JsonWriteOptions& options) {
  std::string out;
  JsonWriter(out, options).write(value);
  return out;
}

void append_json_quoted(std::string& out, std::string_view text, bool ascii) {
  const auto escaped = std::ranges::count_if(text, [](char c) { return c == '"' || c == '\\'; });
  constexpr size_t quotes = 2;
  const size_t size = out.size() + text.size() + static_cast<size_t>(escaped) + quotes;
  if (size > 2 * out.capacity()) out.reserve(size);
  append_quoted(out, text, {.ascii = ascii, .python = true, .limit = SIZE_MAX});
}

std::string json_quote(std::string_view text, bool ascii) {
  std::string out;
  append_json_quoted(out, text, ascii);
  return out;
}

}  // namespace cbk
