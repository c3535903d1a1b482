#include "host/base/glob.hpp"

#include "host/base/error.hpp"

namespace cbk {
namespace {

constexpr size_t max_alternatives = 1000;
constexpr size_t npos = std::string_view::npos;

/// The position after the bracket expression that starts at `at`.
size_t bracket_end(std::string_view pattern, size_t at) {
  size_t end = at + 1;
  if (end < pattern.size() && (pattern[end] == '!' || pattern[end] == '^')) ++end;
  if (end < pattern.size() && pattern[end] == ']') ++end;  // a leading ] is literal
  end = pattern.find(']', end);
  if (end == npos) fail(Errc::usage, "the pattern {} has a '[' without ']'", quote(pattern));
  return end + 1;
}

/// The position of the piece after the one at `at` (a plain character, an escape, a bracket expression).
size_t next_piece(std::string_view pattern, size_t at) {
  if (pattern[at] == '\\' && at + 1 < pattern.size()) return at + 2;
  if (pattern[at] == '[') return bracket_end(pattern, at);
  return at + 1;
}

/// Expands the first pair of braces, then each result.
void expand(const std::string& pattern, std::vector<std::string>& out) {
  if (out.size() >= max_alternatives)
    fail(Errc::usage, "the pattern has more than {} alternatives", max_alternatives);
  size_t open = 0;
  while (open < pattern.size() && pattern[open] != '{') open = next_piece(pattern, open);
  if (open >= pattern.size()) {
    out.push_back(pattern);
    return;
  }
  std::vector<std::string> choices(1);
  size_t at = open + 1;
  for (int depth = 1; depth > 0;) {
    if (at >= pattern.size()) fail(Errc::usage, "the pattern {} has a '{{' without '}}'", quote(pattern));
    const size_t next = next_piece(pattern, at);
    const char c = pattern[at];
    if (c == '{') ++depth;
    if (c == '}') --depth;
    if (depth == 1 && c == ',') {
      choices.emplace_back();
    } else if (depth > 0) {
      choices.back().append(pattern, at, next - at);
    }
    at = next;
  }
  for (const std::string& choice : choices)
    expand(pattern.substr(0, open) + choice + pattern.substr(at), out);
}

bool in_bracket(std::string_view set, char c) {
  size_t at = 0;
  const bool negated = !set.empty() && (set[0] == '!' || set[0] == '^');
  if (negated) ++at;
  bool found = false;
  while (at < set.size()) {
    const auto low = static_cast<unsigned char>(set[at]);
    const bool is_range = at + 2 < set.size() && set[at + 1] == '-';
    const auto high = static_cast<unsigned char>(is_range ? set[at + 2] : set[at]);
    const auto byte = static_cast<unsigned char>(c);
    found = found || (low <= byte && byte <= high);
    at += is_range ? 3 : 1;
  }
  return found != negated;
}

bool match_piece(std::string_view pattern, size_t at, size_t end, char c) {
  if (pattern[at] == '?') return true;
  if (pattern[at] == '[') return in_bracket(pattern.substr(at + 1, end - at - 2), c);
  return pattern[end - 1] == c;  // plain or escaped
}

/// Backtracking to the last star is enough, so no pattern is slow.
bool match(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = npos;
  size_t resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      resume = t;
      continue;
    }
    const size_t end = p < pattern.size() ? next_piece(pattern, p) : 0;
    if (p < pattern.size() && match_piece(pattern, p, end, text[t])) {
      p = end;
      ++t;
    } else if (star != npos) {
      p = star;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace

Glob::Glob(std::string_view pattern) {
  expand(std::string(pattern), alternatives_);
}

bool Glob::matches(std::string_view text) const {
  for (const std::string& alternative : alternatives_) {
    if (match(alternative, text)) return true;
  }
  return false;
}

bool Glob::is_literal(std::string_view pattern) {
  return pattern.find_first_of("*?[{\\") == npos;
}

}  // namespace cbk
