// Renames, filters and new leaves over a small tree. The input is a JSON tree, a line end, and lines that
// each give the new path of a leaf ("=": the old one; an empty one leaves it out), over and over. Whatever
// comes out is a tree with the leaves that were kept, and a rewrite that changes nothing gives the same; the
// rest must be an Error.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "host/value/json.hpp"
#include "host/value/rewrite.hpp"
#include "host/value/walk.hpp"
#include "tests/fuzz/memory_bar.hpp"

using namespace cbk;

namespace {

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

size_t count_leaves(const Value& root) {
  size_t count = 0;
  each_leaf(root, [&](const std::string&, const Value&) { ++count; });
  return count;
}

/// What must hold whatever the rules are.
void check(const Value& root, const std::vector<std::string>& paths) {
  size_t calls = 0;
  size_t kept = 0;
  Rewrite rules;
  rules.path = [&](const std::string& path, const Value&) -> std::optional<std::string> {
    const std::string& chosen = paths.empty() ? path : paths[calls++ % paths.size()];
    if (chosen.empty() && !paths.empty()) return std::nullopt;
    ++kept;
    return chosen == "=" ? path : chosen;
  };
  rules.leaf = [](const std::string& path, const Value& leaf) {
    return leaf.is(Value::Kind::boolean) ? Value(path) : leaf;
  };
  rules.memory = std::make_shared<MemoryBudget>(1 << 16);
  const Value changed = rewrite(root, rules);
  if (kept > 0 && count_leaves(changed) != kept) std::abort();
  const auto same = [](const std::string& path, const Value&) { return std::optional(path); };
  if (!rewrite(changed, {same, {}, {}}).equals(changed)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\n'), input.size());
  const MemoryBar bar(size);
  try {
    const Value root = parse_json(input.substr(0, end));
    const std::string before = to_json(root, {.python = true});
    try {
      check(root, lines_of(input.substr(std::min(end + 1, input.size()))));
    } catch (const Error& error) {
      if (error.code() == Errc::internal) std::abort();
    }
    if (to_json(root, {.python = true}) != before) std::abort();  // the input is not changed
  } catch (const Error&) {
  }
  return 0;
}
