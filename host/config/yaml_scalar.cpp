#include "host/config/yaml_scalar.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <limits>

namespace cbk::yaml {
namespace {

/// Scans a scalar for the patterns of the resolver, without backtracking.
class Scan {
 public:
  explicit Scan(std::string_view text) : text_(text) {}

  bool one_of(std::string_view set) {
    if (at_end() || set.find(text_[i_]) == std::string_view::npos) return false;
    ++i_;
    return true;
  }
  size_t run(std::string_view set) {
    const size_t start = i_;
    while (one_of(set)) {
    }
    return i_ - start;
  }
  bool word(std::string_view word) {
    if (!text_.substr(i_).starts_with(word)) return false;
    i_ += word.size();
    return true;
  }
  /// A run of `least` to `most` digits.
  bool digits(size_t least, size_t most) {
    size_t count = 0;
    while (count < most && one_of("0123456789")) ++count;
    return count >= least;
  }
  [[nodiscard]] bool at_end() const { return i_ == text_.size(); }

 private:
  std::string_view text_;
  size_t i_ = 0;
};

constexpr std::string_view digit = "0123456789";
constexpr std::string_view digit_or_underscore = "0123456789_";

template <size_t N>
bool is_one_of(std::string_view text, const std::array<std::string_view, N>& words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

constexpr std::array<std::string_view, 9> true_words = {"yes",  "Yes", "YES", "true", "True",
                                                        "TRUE", "on",  "On",  "ON"};
constexpr std::array<std::string_view, 9> false_words = {"no",    "No",  "NO",  "false", "False",
                                                         "FALSE", "off", "Off", "OFF"};
constexpr std::array<std::string_view, 5> null_words = {"", "~", "null", "Null", "NULL"};

/// (:[0-5]?[0-9])+
bool base_60_parts(Scan& scan) {
  size_t count = 0;
  while (scan.one_of(":")) {
    const bool tens = scan.one_of("012345");
    if (!scan.one_of(digit) && !tens) return false;
    ++count;
  }
  return count > 0;
}

/// [eE] sign digits; the sign may be missing if `free`.
bool exponent(Scan& scan, bool free) {
  return scan.one_of("eE") && (scan.one_of("+-") || free) && scan.run(digit) > 0;
}

bool is_decimal_float(std::string_view text, bool free) {
  Scan scan(text);
  if (!scan.one_of(".")) {
    scan.one_of("+-");
    if (!scan.one_of(digit)) return false;
    scan.run(digit_or_underscore);
    if (scan.one_of(".")) {
      scan.run(digit_or_underscore);
    } else if (!free) {
      return false;
    }
  } else {
    if (!scan.one_of(digit)) return false;
    scan.run(digit_or_underscore);
  }
  if (scan.at_end()) return !free;
  return exponent(scan, free) && scan.at_end();
}

bool is_base_60(std::string_view text, bool fraction) {
  Scan scan(text);
  scan.one_of("+-");
  if (!scan.one_of(fraction ? digit : digit.substr(1))) return false;
  scan.run(digit_or_underscore);
  if (!base_60_parts(scan)) return false;
  if (fraction) {
    if (!scan.one_of(".")) return false;
    scan.run(digit_or_underscore);
  }
  return scan.at_end();
}

bool is_special_float(std::string_view text) {
  constexpr std::array<std::string_view, 3> infinities = {".inf", ".Inf", ".INF"};
  constexpr std::array<std::string_view, 3> nans = {".nan", ".NaN", ".NAN"};
  const bool is_signed = text.starts_with('-') || text.starts_with('+');
  return is_one_of(text.substr(is_signed ? 1 : 0), infinities) || is_one_of(text, nans);
}

/// A prefix, then digits and "_", at least one digit.
bool is_prefixed(std::string_view text, std::string_view prefix, std::string_view digits) {
  Scan scan(text);
  scan.one_of("+-");
  if (!scan.word(prefix)) return false;
  scan.run("_");
  const bool any = scan.run(digits) > 0;
  return any && scan.at_end();
}

bool is_integer(std::string_view text) {
  Scan scan(text);
  scan.one_of("+-");
  if (scan.one_of("0")) {
    scan.run("01234567_");
    if (scan.at_end()) return true;
    return is_prefixed(text, "0b", "01_") || is_prefixed(text, "0x", "0123456789abcdefABCDEF_");
  }
  if (!scan.one_of(digit)) return false;
  scan.run(digit_or_underscore);
  return scan.at_end() || is_base_60(text, false);
}

bool is_date(std::string_view text) {
  Scan scan(text);
  return scan.digits(4, 4) && scan.one_of("-") && scan.digits(2, 2) && scan.one_of("-") &&
         scan.digits(2, 2) && scan.at_end();
}

bool is_time(std::string_view text) {
  Scan scan(text);
  const bool day =
      scan.digits(4, 4) && scan.one_of("-") && scan.digits(1, 2) && scan.one_of("-") && scan.digits(1, 2);
  if (!day || (!scan.one_of("Tt") && scan.run(" \t") == 0)) return false;
  const bool clock =
      scan.digits(1, 2) && scan.one_of(":") && scan.digits(2, 2) && scan.one_of(":") && scan.digits(2, 2);
  if (!clock) return false;
  if (scan.one_of(".")) scan.run(digit);
  scan.run(" \t");
  if (!scan.one_of("Z") && scan.one_of("+-")) {
    if (!scan.digits(1, 2)) return false;
    if (scan.one_of(":") && !scan.digits(2, 2)) return false;
  }
  return scan.at_end();
}

// --- values

/// An integer that is built digit by digit in any base.
class BigNumber {
 public:
  void push(uint32_t base, uint32_t next) {
    uint64_t carry = next;
    for (uint32_t& limb : limbs_) {
      carry += uint64_t{limb} * base;
      limb = static_cast<uint32_t>(carry % billion);
      carry /= billion;
    }
    if (carry > 0) limbs_.push_back(static_cast<uint32_t>(carry));
  }
  [[nodiscard]] std::string decimal() const {
    if (limbs_.empty()) return "0";
    std::string out = std::to_string(limbs_.back());
    for (size_t i = limbs_.size() - 1; i-- > 0;) out += fmt::format("{:09}", limbs_[i]);
    return out;
  }

 private:
  static constexpr uint64_t billion = 1000000000;
  std::vector<uint32_t> limbs_;  // base 10^9, lowest first
};

std::string in_base(std::string_view digits, uint32_t base) {
  BigNumber number;
  for (char c : digits) {
    const auto value = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    number.push(base, static_cast<uint32_t>(value));
  }
  return number.decimal();
}

std::string from_base_60(std::string_view text) {
  BigNumber number;
  uint32_t part = 0;
  size_t start = 0;
  const size_t first = text.find(':');
  for (char c : text.substr(0, first)) number.push(10, static_cast<uint32_t>(c - '0'));
  for (start = first + 1; start <= text.size();) {
    const size_t end = std::min(text.find(':', start), text.size());
    std::from_chars(text.data() + start, text.data() + end, part);
    number.push(60, part);
    start = end + 1;
  }
  return number.decimal();
}

std::string without_underscores(std::string_view text) {
  std::string out(text);
  std::erase(out, '_');
  return out;
}

Value integer_of(std::string_view spelling) {
  const std::string text = without_underscores(spelling);
  const bool is_negative = text.front() == '-';
  std::string_view digits = std::string_view(text).substr(is_negative || text.front() == '+' ? 1 : 0);
  std::string decimal;
  constexpr size_t longest = 5000;  // converting a base costs the square of the length
  const bool is_plain = digits.front() != '0' && digits.find(':') == std::string_view::npos;
  if (!is_plain && digits.size() > longest) fail(Errc::format, "the number {} is too long", quote(text, 40));
  if (digits.starts_with("0b")) {
    decimal = in_base(digits.substr(2), 2);
  } else if (digits.starts_with("0x")) {
    decimal = in_base(digits.substr(2), 16);
  } else if (digits.front() == '0') {
    decimal = in_base(digits.substr(1), 8);
  } else {
    decimal = is_plain ? std::string(digits) : from_base_60(digits);
  }
  const Value value = Value::integer((is_negative && decimal != "0" ? "-" : "") + decimal);
  Integer integer = value.as_integer();
  if (integer.fits && std::to_string(integer.value) != spelling) {
    integer.digits = std::make_shared<const std::string>(spelling);
  }
  return integer;
}

/// Fails if a date or time is invalid in the calendar or on the clock. `classify` found its parts.
void check_moment(std::string_view text) {
  std::array<int, 6> parts{};  // year, month, day, hour, minute, second
  size_t at = 0;
  for (int& part : parts) {
    while (at < text.size() && digit.find(text[at]) == std::string_view::npos) ++at;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), part);
    if (error != std::errc{}) break;
    at = static_cast<size_t>(end - text.data());
  }
  const auto [year, month, day, hour, minute, second] = parts;
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (year == 0 || !date.ok() || hour > 23 || minute > 59 || second > 59)
    fail(Errc::format, "{} is not a date; write text in quotes", quote(text, 60));
}

double decimal_float(std::string_view text) {
  const std::string_view digits = text.substr(text.starts_with('+') ? 1 : 0);
  double number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  // Beyond the range: strtod distinguishes infinity from zero.
  return error == std::errc::result_out_of_range ? std::strtod(std::string(digits).c_str(), nullptr) : number;
}

double base_60_float(std::string_view text) {
  const bool is_negative = text.front() == '-';
  if (is_negative || text.front() == '+') text.remove_prefix(1);
  double number = 0;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(':', start), text.size());
    number = number * 60 + decimal_float(text.substr(start, end - start));
    start = end + 1;
  }
  return is_negative ? -number : number;
}

Value real_of(std::string_view spelling) {
  Real real;
  real.spelling = std::make_shared<const std::string>(spelling);
  real.from_yaml = true;
  if (is_special_float(spelling)) {
    const bool is_nan = spelling.find_first_of("aA") != std::string_view::npos;
    real.value = is_nan ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
    if (spelling.front() == '-') real.value = -real.value;
    return real;
  }
  const std::string text = without_underscores(spelling);
  real.value = text.find(':') != std::string::npos ? base_60_float(text) : decimal_float(text);
  return real;
}

}  // namespace

bool is_pyyaml_float(std::string_view text) {
  return is_decimal_float(text, false) || is_base_60(text, true) || is_special_float(text);
}

ScalarKind classify(std::string_view text) {
  if (is_one_of(text, null_words)) return ScalarKind::null;
  if (is_one_of(text, true_words) || is_one_of(text, false_words)) return ScalarKind::boolean;
  if (text == "<<") return ScalarKind::merge;
  if (text == "=") return ScalarKind::value;
  if (std::string_view("+-.0123456789").find(text.front()) == std::string_view::npos) return ScalarKind::text;
  if (is_pyyaml_float(text)) return ScalarKind::real;
  if (is_integer(text)) return ScalarKind::integer;
  if (is_date(text)) return ScalarKind::date;
  if (is_time(text)) return ScalarKind::time;
  if (is_decimal_float(text, true)) return ScalarKind::exponent_real;
  return ScalarKind::text;
}

bool is_ambiguous(std::string_view text) {
  if (classify(text) != ScalarKind::text) return true;
  constexpr std::array<std::string_view, 4> letters = {"y", "Y", "n", "N"};
  if (is_one_of(text, letters)) return true;
  // YAML 1.2: 0o17, -.5, 08, 1e5; and any other text that consists only of characters of numbers.
  if (text.starts_with("0o") || text.starts_with("+.") || text.starts_with("-.")) return true;
  Scan scan(text);
  scan.one_of("+-");
  if (scan.one_of("0") && scan.one_of("bx")) return true;
  return Scan(text).run("0123456789+-._:eE") == text.size() &&
         text.find_first_of(digit) != std::string_view::npos;
}

Value convert(std::string_view text, ScalarKind kind) {
  const ScalarKind found = classify(text);
  if (kind == ScalarKind::null) return {};
  if (kind == ScalarKind::boolean && found == kind) return is_one_of(text, true_words);
  if (kind == ScalarKind::integer && found == kind) return integer_of(text);
  if (kind == ScalarKind::real) {
    if (found == ScalarKind::integer) return integer_of(text).as_double();
    if (found == ScalarKind::real || found == ScalarKind::exponent_real) return real_of(text);
  }
  fail(Errc::format, "{} does not fit its tag", quote(text, 60));
}

Value resolve(std::string_view text) {
  const ScalarKind kind = classify(text);
  switch (kind) {
    case ScalarKind::null:
      return {};
    case ScalarKind::boolean:
    case ScalarKind::integer:
      return convert(text, kind);
    case ScalarKind::real:
    case ScalarKind::exponent_real:
      return real_of(text);
    case ScalarKind::date:
      check_moment(text);
      return std::make_shared<Object>(Object{"datetime.date", std::string(text), {}});
    case ScalarKind::time:
      check_moment(text);
      return std::make_shared<Object>(Object{"datetime.datetime", std::string(text), {}});
    case ScalarKind::merge:
    case ScalarKind::value:
    case ScalarKind::text:
      return text;
  }
  return text;
}

}  // namespace cbk::yaml
