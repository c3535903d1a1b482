#include "host/checkpoint/read_limit.hpp"

#include <unordered_map>
#include <unordered_set>

#include "host/tensor/backing.hpp"
#include "host/tensor/expression.hpp"

namespace cbk {
namespace {

constexpr uint64_t always_allowed = uint64_t{1} << 30;

uint64_t saturating_add(uint64_t a, uint64_t b) {
  return a + b < a ? UINT64_MAX : a + b;
}

/// The bytes of all tensors, also of those in objects; shared ones count each time.
uint64_t shown_bytes(const Value& value) {
  uint64_t total = 0;
  if (value.is(Value::Kind::tensor)) {
    total = value.as_tensor().nbytes();
  } else if (value.is(Value::Kind::dict)) {
    for (const auto& [key, item] : value.as_dict().entries())
      total = saturating_add(total, shown_bytes(item));
  } else if (value.is(Value::Kind::sequence)) {
    for (const Value& item : value.as_sequence().items) total = saturating_add(total, shown_bytes(item));
  } else if (value.is(Value::Kind::object)) {
    total = shown_bytes(value.as_object().state);
  }
  return total;
}

/// Visits the tensors of a tree, once for each place in a dict, list or object, and may replace them.
class Tensors {
 public:
  Tensors(MemoryBudget& memory, std::function<void(Value&)> visit)
      : memory_(memory), visit_(std::move(visit)) {}

  void walk(Value& value) {
    if (value.is(Value::Kind::tensor)) return visit_(value);
    const bool nests =
        value.is(Value::Kind::dict) || value.is(Value::Kind::sequence) || value.is(Value::Kind::object);
    if (!nests || !seen_.insert(value.identity()).second) return;
    memory_.grow(seen_bytes);
    if (value.is(Value::Kind::dict)) {
      for (const auto& [key, item] : value.as_dict().entries()) {
        Value changed = item;
        walk(changed);
        if (!changed.same(item)) value.as_dict().set(key, std::move(changed));
      }
    } else if (value.is(Value::Kind::sequence)) {
      for (Value& item : value.as_sequence().items) walk(item);
    } else {
      walk(value.as_object().state);
    }
  }

 private:
  static constexpr uint64_t seen_bytes = 64;
  MemoryLoan memory_;
  std::function<void(Value&)> visit_;
  std::unordered_set<const void*> seen_;
};

void each_view(const Expression& expression, const std::function<void(const View&)>& visit) {
  if (const auto* source = dynamic_cast<const ViewExpression*>(&expression)) return visit(source->view());
  expression.each_input([&](const Expression& input) { each_view(input, visit); });
}

Error beyond(uint64_t bytes, uint64_t total, uint64_t limit) {
  constexpr uint64_t gib = uint64_t{1} << 30;
  const std::string enough = fmt::format("{}GiB", total / gib + (total % gib != 0 ? 1 : 0));
  return {Errc::value,
          {.problem = fmt::format(
               "the file does not hold {} of it, which are repeated, never written or packed; the "
               "checkpoint has {} of such data, and the limit is {}",
               format_size(bytes), format_size(total), format_size(limit)),
           .advice = fmt::format("--max-expansion {} (in Lua max_expansion = \"{}\") allows that", enough,
                                 enough)}};
}

Value unreadable_leaf(const TensorLeaf& leaf, const Error& why) {
  TensorLeaf out = leaf;
  const Shape& shape = leaf.tensor.shape();
  out.tensor = Tensor::from_view({unreadable_storage(leaf.tensor.nbytes(), why), leaf.tensor.dtype(), 0,
                                  shape, contiguous_strides(shape)});
  return std::make_shared<const TensorLeaf>(std::move(out));
}

using Refused = std::unordered_map<const Storage*, Error>;

/// The storages that are not read, and why.
Refused refused(Checkpoint& checkpoint, uint64_t limit) {
  Backing backing(*checkpoint.memory);
  Tensors(*checkpoint.memory, [&](const Value& value) {
    const Expression& expression = *value.as_tensor().expression();
    if (problem_of(expression).empty()) each_view(expression, [&](const View& view) { backing.add(view); });
  }).walk(checkpoint.root);
  const std::vector<Backing::Excess> excess = backing.excess();
  uint64_t total = 0;
  for (const Backing::Excess& each : excess) total = saturating_add(total, each.bytes);
  Refused out;
  uint64_t allowed = 0;
  for (const Backing::Excess& each : excess) {
    allowed = saturating_add(allowed, each.bytes);
    if (allowed > limit) out.emplace(each.storage, beyond(each.bytes, total, limit));
  }
  return out;
}

/// The replacement of each leaf, shared by all of its ties.
class Replacements {
 public:
  explicit Replacements(const Refused& refused) : refused_(refused) {}

  void replace(Value& value) {
    const auto leaf = value.node<const TensorLeaf>();
    if (const auto known = made_.find(leaf); known != made_.end()) return void(value = known->second);
    const Error* why = nullptr;
    each_view(*leaf->tensor.expression(), [&](const View& view) {
      if (const auto found = refused_.find(view.storage.get()); found != refused_.end()) why = &found->second;
    });
    if (why != nullptr) value = made_.emplace(leaf, unreadable_leaf(*leaf, *why)).first->second;
  }

 private:
  const Refused& refused_;
  std::unordered_map<std::shared_ptr<const TensorLeaf>, Value> made_;
};

}  // namespace

void limit_expansion(Checkpoint& checkpoint, std::optional<uint64_t> limit) {
  const uint64_t allowed = limit.value_or(always_allowed);
  if (shown_bytes(checkpoint.root) <= saturating_add(checkpoint.memory->file_size(), allowed)) return;
  const Refused why_not = refused(checkpoint, allowed);
  if (why_not.empty()) return;
  Replacements replacements(why_not);
  Tensors(*checkpoint.memory, [&](Value& value) { replacements.replace(value); }).walk(checkpoint.root);
}

}  // namespace cbk
