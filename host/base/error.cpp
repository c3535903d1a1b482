#include "host/base/error.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <system_error>
#include <utility>

#include "host/base/utf8.hpp"

namespace cbk {

std::string_view name_of(Errc code) {
  constexpr std::array<std::string_view, 17> names = {
      "usage",  "ambiguous", "missing",     "key",         "value",    "shape",
      "dtype",  "format",    "unsupported", "refused",     "external", "changed",
      "exists", "io",        "no_space",    "interrupted", "internal"};
  return names.at(static_cast<size_t>(code));
}

std::string text_of(const ErrorParts& parts) {
  std::string out;
  for (const std::string& context : parts.context) out += context + ": ";
  out += parts.problem;
  if (!parts.supported.empty()) {
    out += fmt::format(": only {} is supported", parts.supported);
  } else if (!parts.expected.empty()) {
    out += fmt::format(": expected {}", parts.expected);
    if (!parts.found.empty()) out += fmt::format(", found {}", parts.found);
  }
  if (parts.advice.empty()) return out;
  if (!out.ends_with('?')) return out + "; " + parts.advice;
  out += " " + parts.advice;
  char& first = out[out.size() - parts.advice.size()];
  if (first >= 'a' && first <= 'z') first = static_cast<char>(first - 'a' + 'A');
  return out;
}

Error Error::in(std::string context) const {
  ErrorParts parts = *parts_;
  parts.context.insert(parts.context.begin(), std::move(context));
  return {code_, std::move(parts)};
}

Error Error::about(const std::string& file) const {
  ErrorParts parts = *parts_;
  if (parts.file.empty()) parts.file = file;
  return {code_, std::move(parts)};
}

void fail_errno(std::string_view action, std::string_view path) {
  fail_errno(action, path, errno);
}

void fail_errno(std::string_view action, std::string_view path, int error_number) {
  Errc code = Errc::io;
  if (error_number == ENOSPC || error_number == EDQUOT) code = Errc::no_space;
  if (error_number == EEXIST) code = Errc::exists;
  const std::string_view hint = error_number == EMFILE ? " (`ulimit -n` says how many can be)" : "";
  throw Error(code, {.problem = fmt::format("{}{}", std::generic_category().message(error_number), hint),
                     .file = std::string(path)})
      .in(fmt::format("cannot {} {}", action, quote(path, 300)));
}

namespace {

/// Appends the character at `i` and advances.
void append_shown(std::string& out, std::string_view text, size_t& i) {
  const size_t start = i;
  const auto character = decode_utf8(text, i);
  if (!character) ++i;
  if (character && is_plain(*character)) {
    out += text.substr(start, i - start);
    return;
  }
  for (const char c : text.substr(start, i - start))
    out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
}

}  // namespace

std::string shown(std::string_view text, bool lines) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    if (lines && (text[i] == '\n' || text[i] == '\t')) {
      out += text[i++];
    } else {
      append_shown(out, text, i);
    }
  }
  return out;
}

std::string quote(std::string_view text, size_t limit) {
  std::string out = "'";
  size_t i = 0;
  while (i < std::min(text.size(), limit)) append_shown(out, text, i);
  return out + (i < text.size() ? "…'" : "'");
}

std::string one_line(std::string_view message) {
  std::string line;
  bool pending_break = false;
  for (size_t i = 0; i < message.size();) {
    const char c = message[i];
    if (c == '\n' || c == '\r') {
      pending_break = true;
      ++i;
    } else if (pending_break && (c == ' ' || c == '\t')) {
      ++i;  // the indentation of a folded line
    } else {
      if (pending_break && !line.empty()) line += line.back() == ':' || line.back() == ';' ? " " : "; ";
      pending_break = false;
      append_shown(line, message, i);
    }
  }
  return line;
}

std::string listed(const std::vector<std::string>& names, size_t limit) {
  std::string out;
  for (size_t i = 0; i < std::min(limit, names.size()); ++i) {
    if (i > 0) out += ", ";
    out += names[i];
  }
  if (names.size() > limit) out += fmt::format(" and {} more", names.size() - limit);
  return out;
}

namespace {

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before;
  std::vector<size_t> above(b.size() + 1);
  std::iota(above.begin(), above.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    std::vector<size_t> row(b.size() + 1, i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = std::exchange(above, std::move(row));
  }
  return above[b.size()];
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

}  // namespace

std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates,
                                 size_t limit) {
  constexpr size_t least_beginning = 3;  // shorter ones begin too many names
  struct Near {
    size_t distance;
    size_t with_case;  // which decides between names that are as near
    std::string name;
  };
  std::vector<Near> ranked;
  if (name.find_first_not_of(' ') == std::string_view::npos) return {};
  name = name.substr(0, 200);
  const std::string lower = lower_case(name);
  for (const std::string& candidate : candidates) {
    const std::string_view compared = std::string_view(candidate).substr(0, 200);
    const std::string lower_compared = lower_case(compared);
    const bool begins = name.size() >= least_beginning && lower_compared.starts_with(lower);
    size_t distance = edit_distance(lower, lower_compared);
    if (begins) distance = std::min<size_t>(distance, 1);
    if (distance <= std::max<size_t>(1, (name.size() + 1) / 3))
      ranked.push_back({distance, edit_distance(name, compared), candidate});
  }
  std::ranges::stable_sort(ranked, {},
                           [](const Near& near) { return std::pair(near.distance, near.with_case); });
  std::vector<std::string> out;
  for (size_t i = 0; i < std::min(limit, ranked.size()); ++i) out.push_back(ranked[i].name);
  return out;
}

}  // namespace cbk
