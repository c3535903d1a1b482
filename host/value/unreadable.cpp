#include "host/value/unreadable.hpp"

#include <algorithm>
#include <unordered_set>

#include "host/tensor/expression.hpp"
#include "host/value/walk.hpp"

namespace cbk {
namespace {

/// Why this value itself cannot be read; empty if it can.
std::string_view problem_of(const Value& value) {
  if (value.is(Value::Kind::tensor)) return cbk::problem_of(*value.as_tensor().expression());
  const bool is_one = value.is(Value::Kind::object) && value.as_object().type == unreadable_type;
  return is_one ? std::string_view(value.as_object().repr) : std::string_view();
}

/// The problem with the value's path in front, unless the problem contains it.
std::string named(std::string_view problem, std::string_view path) {
  if (path.empty() || problem.find(quote(path)) != std::string_view::npos) return std::string(problem);
  return fmt::format("{}: {}", quote(path), problem);
}

}  // namespace

Value unreadable(std::string why) {
  return std::make_shared<Object>(Object{std::string(unreadable_type), std::move(why), {}});
}

std::vector<std::string> unreadable_warnings(const Value& root) {
  constexpr size_t most = 20;
  std::vector<std::string> warnings;
  size_t count = 0;
  each_leaf(root, [&](const std::string& path, const Value& leaf) {
    const auto problem = problem_of(leaf);
    if (!problem.empty() && ++count <= most) warnings.push_back(named(problem, path));
  });
  if (count > most) warnings.push_back(fmt::format("{} more values cannot be read", count - most));
  return warnings;
}

void refuse_unreadable(const Value& root) {
  struct Place {
    Value value;
    std::string path;
  };
  std::vector<std::string> problems;
  std::unordered_set<const void*> seen;
  std::vector<Place> waiting = {{root, ""}};  // the next one last
  const auto add = [&](const Value& value, const std::string& path, const std::string& part) {
    if (value.identity() != nullptr && seen.insert(value.identity()).second)
      waiting.push_back({value, path.empty() ? part : path + "." + part});
  };
  while (!waiting.empty()) {
    const auto [value, path] = std::move(waiting.back());
    waiting.pop_back();
    if (const auto problem = problem_of(value); !problem.empty()) problems.push_back(named(problem, path));
    if (value.is(Value::Kind::dict)) {
      for (const auto& [key, item] : value.as_dict().entries()) add(item, path, key_text(key));
    } else if (value.is(Value::Kind::sequence)) {
      size_t position = 0;
      for (const Value& item : value.as_sequence().items) add(item, path, std::to_string(position++));
    } else if (value.is(Value::Kind::object)) {
      add(value.as_object().state, path, "state");
    }
  }
  if (problems.empty()) return;
  std::sort(problems.begin(), problems.end());
  fail(Errc::unsupported, "{}; cbk copy --exclude leaves {} out", listed(problems, 5),
       problems.size() == 1 ? "it" : "them");
}

}  // namespace cbk
