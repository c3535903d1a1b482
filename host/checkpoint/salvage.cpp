#include "host/checkpoint/salvage.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/tensor/expression.hpp"
#include "host/value/rewrite.hpp"
#include "host/value/unreadable.hpp"

namespace cbk {
namespace {

bool is_lost_tensor(const Value& value) {
  return value.is(Value::Kind::tensor) && !problem_of(*value.as_tensor().expression()).empty();
}

/// Also true for an object with such a tensor: TensorFlow's texts, PyTorch's sparse tensors.
bool is_lost(const Value& leaf) {
  if (!leaf.is(Value::Kind::object)) return is_lost_tensor(leaf);
  const Object& object = leaf.as_object();
  if (object.type == unreadable_type) return true;
  if (!object.state.is(Value::Kind::dict)) return false;
  const auto entries = object.state.as_dict().entries();
  return std::any_of(entries.begin(), entries.end(),
                     [](const auto& entry) { return is_lost_tensor(entry.second); });
}

}  // namespace

void leave_out_lost(Checkpoint& checkpoint) {
  constexpr size_t most_named = 20;
  size_t tensors = 0;
  std::vector<std::string> lost;
  Rewrite rules;
  rules.memory = checkpoint.memory;
  rules.path = [&](const std::string& path, const Value& leaf) -> std::optional<std::string> {
    if (!is_lost(leaf)) {
      tensors += leaf.is(Value::Kind::tensor) ? 1 : 0;
      return path;
    }
    lost.push_back(path);
    return std::nullopt;
  };
  Value rest = rewrite(checkpoint.root, rules);
  if (lost.empty()) return;
  if (tensors == 0) fail(Errc::format, "nothing can be salvaged: none of {} tensors is whole", lost.size());
  std::vector<std::string> names;
  names.reserve(lost.size());
  for (const std::string& path : lost) names.push_back(quote(path, 1000));
  checkpoint.root = std::move(rest);
  checkpoint.unreadable.push_back(fmt::format("{} of {} tensors cannot be read and {} left out: {}",
                                              lost.size(), lost.size() + tensors,
                                              lost.size() == 1 ? "is" : "are", listed(names, most_named)));
  checkpoint.lost = std::move(lost);
}

}  // namespace cbk
