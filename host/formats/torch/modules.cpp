#include "host/formats/torch/modules.hpp"

#include <string>
#include <unordered_map>
#include <unordered_set>

namespace cbk::torch {
namespace {

constexpr uint64_t entry_bytes = 200;  // of a dict, about

const Value* attribute(const Value& value, std::string_view name) {
  const bool is_record = value.is(Value::Kind::object) && value.as_object().is_record;
  return is_record ? value.as_object().state.find(name) : nullptr;
}

bool is_module(const Value& value) {
  for (const char* name : {"_parameters", "_buffers", "_modules"}) {
    const Value* part = attribute(value, name);
    if (part == nullptr || !part->is(Value::Kind::dict)) return false;
  }
  return true;
}

/// Modules without parameters, such as activations, have no name in a state dict.
bool is_empty(const Value& value) {
  return value.is_none() || (value.is(Value::Kind::dict) && value.as_dict().empty());
}

std::unordered_set<std::string> texts_of(const Value* names) {
  std::unordered_set<std::string> out;
  if (names == nullptr || !names->is(Value::Kind::sequence)) return out;
  for (const Value& name : names->as_sequence().items) out.insert(key_text(name));
  return out;
}

class Modules {
 public:
  explicit Modules(MemoryBudget& memory) : memory_(memory) {}

  Value replaced(const Value& value) {
    const bool may_hold =
        value.is(Value::Kind::dict) || value.is(Value::Kind::sequence) || value.is(Value::Kind::object);
    if (!may_hold) return value;
    if (auto known = known_.find(value.identity()); known != known_.end()) return known->second.made;
    known_[value.identity()] = {value, value};
    if (is_module(value)) return known_[value.identity()].made = state_dict(value);
    if (value.is(Value::Kind::sequence)) {
      for (Value& item : value.as_sequence().items) item = replaced(item);
    } else if (value.is(Value::Kind::dict)) {
      in_entries(value.as_dict());
    } else {
      value.as_object().state = replaced(value.as_object().state);
    }
    return value;
  }

 private:
  void in_entries(Dict& dict) {
    for (const auto& [key, value] : dict.entries()) {
      Value made = replaced(value);
      if (!made.same(value)) dict.set(key, std::move(made));
    }
  }

  Value state_dict(const Value& module) {
    Value made = Value::dict();
    const auto add = [&](const Value& key, const Value& value) {
      memory_.charge(entry_bytes);
      made.as_dict().set(key, value);
    };
    const std::unordered_set<std::string> passing =
        texts_of(attribute(module, "_non_persistent_buffers_set"));
    for (const auto& [key, value] : attribute(module, "_parameters")->as_dict().entries())
      if (!value.is_none()) add(key, value);
    for (const auto& [key, value] : attribute(module, "_buffers")->as_dict().entries())
      if (!value.is_none() && !passing.contains(key_text(key))) add(key, value);
    for (const auto& [key, value] : attribute(module, "_modules")->as_dict().entries())
      if (const Value inner = replaced(value); !is_empty(inner)) add(key, inner);
    return made;
  }

  struct Known {
    Value read;  // kept, so that nothing else gets its address
    Value made;
  };
  MemoryBudget& memory_;
  std::unordered_map<const void*, Known> known_;  // by the identity of what was read
};

}  // namespace

Value with_state_dicts(const Value& root, MemoryBudget& memory) {
  return Modules(memory).replaced(root);
}

}  // namespace cbk::torch
