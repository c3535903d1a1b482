#include "host/checkpoint/unreadable.hpp"

#include <unordered_set>

#include "host/tensor/expression.hpp"

namespace cbk {
namespace {

constexpr std::string_view unreadable_type = "unreadable";

/// Why this value itself cannot be read; empty: it can.
std::string_view problem_of(const Value& value) {
  if (value.is(Value::Kind::tensor)) return cbk::problem_of(*value.as_tensor().expression());
  const bool is_one = value.is(Value::Kind::object) && value.as_object().type == unreadable_type;
  return is_one ? std::string_view(value.as_object().repr) : std::string_view();
}

}  // namespace

Value unreadable(std::string why) {
  return std::make_shared<Object>(Object{std::string(unreadable_type), std::move(why), {}, {}});
}

void refuse_unreadable(const Value& root) {
  std::vector<std::string> problems;
  std::unordered_set<const void*> seen;
  std::vector<Value> waiting = {root};  // the next one last
  const auto add = [&](const Value& value) {
    if (value.identity() != nullptr && seen.insert(value.identity()).second) waiting.push_back(value);
  };
  while (!waiting.empty()) {
    const Value value = std::move(waiting.back());
    waiting.pop_back();
    if (const auto problem = problem_of(value); !problem.empty()) problems.emplace_back(problem);
    if (value.is(Value::Kind::dict)) {
      for (const auto& [key, item] : value.as_dict().entries()) add(item);
    } else if (value.is(Value::Kind::sequence)) {
      for (const Value& item : value.as_sequence().items) add(item);
    } else if (value.is(Value::Kind::object)) {
      add(value.as_object().state);
    }
  }
  if (problems.empty()) return;
  std::sort(problems.begin(), problems.end());
  fail(Errc::unsupported, "{}; --exclude leaves {} out", listed(problems, 5),
       problems.size() == 1 ? "it" : "them");
}

}  // namespace cbk
