#include "host/formats/ranks/zero.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "host/formats/pickle/torch_tensors.hpp"
#include "host/value/attribute.hpp"
#include "host/value/unreadable.hpp"

namespace cbk::ranks {
namespace {

/// What says how the weights are cut, or is a part of them.
constexpr auto layout = std::to_array<std::string_view>(
    {"param_shapes", "buffer_names", "shared_params", "frozen_param_shapes", "frozen_param_fragments"});

constexpr uint64_t entry_bytes = 500;  // of a parameter in the tree, with its moments, about

/// A whole number, or the largest of a list.
int64_t count_of(const Value& value) {
  if (!value.is(Value::Kind::sequence)) return value.as_int();
  int64_t most = 0;
  for (const Value& item : value.as_sequence().items) most = std::max(most, item.as_int());
  return most;
}

constexpr std::string_view stage_3_weights = "fp32_flat_groups";
constexpr std::string_view other_weights = "single_partition_of_fp32_groups";

struct Parameter {
  std::string name;
  Shape shape;
  int64_t numel = 0;
};
using Group = std::vector<Parameter>;

Group group_of(const Value& shapes) {
  Group out;
  for (const auto& [name, size] : shapes.as_dict().entries()) {
    const Shape shape = pickle::shape_of(size);
    out.push_back({name.as_string(), shape, numel_of(shape)});
  }
  return out;
}

std::vector<Group> groups_of(const Value& model) {
  std::vector<Group> out;
  for (const Value& shapes : attribute(model, "param_shapes").as_sequence().items)
    out.push_back(group_of(shapes));
  return out;
}

using Tensors = std::vector<Tensor>;

Tensors tensors_of(const Value& list) {
  Tensors out;
  for (const Value& item : list.as_sequence().items) out.push_back(item.as_tensor().reshape({-1}));
  return out;
}

/// Flat tensors one after another.
Tensor joined(const Tensors& flat) {
  return flat.size() == 1 ? flat.front() : Tensor::concat(flat, 0);
}

/// The values of all parameters in one kind of flat tensors, by names.
using Named = std::map<std::string, Tensor>;

class Zero {
 public:
  Zero(std::vector<Part> models, std::vector<Part> optimizers)
      : models_(std::move(models)), optimizers_(std::move(optimizers)), groups_(groups_of(model())) {
    const Value& state = state_of(0);
    is_stage_3_ = find_attribute(state, stage_3_weights) != nullptr;
    const int64_t wanted = count_of(attribute(state, "partition_count"));
    const auto found = static_cast<int64_t>(optimizers_.size());
    if (wanted != found) {
      throw Error(Errc::format,
                  {.problem = fmt::format(
                       "its weights are in {} partitions, and the folder has {} (files *_optim_states.pt)",
                       wanted, found),
                   .advice = "copy the files of all ranks into the folder"});
    }
    const Value* model_ranks = find_attribute(model(), "mp_world_size");
    if (model_ranks != nullptr && model_ranks->is(Value::Kind::integer) && model_ranks->as_int() > 1)
      fail(Errc::unsupported, "ZeRO with {} tensor-parallel ranks is not joined", model_ranks->as_int());
    if (is_stage_3_ && models_.size() != optimizers_.size() && has_frozen())
      fail(Errc::format, "{} files *_model_states.pt for {} ranks", models_.size(), optimizers_.size());
  }

  [[nodiscard]] const Value& model() const { return models_.front().root; }
  /// Each rank has a piece of each weight, and the model's files have placeholders without elements.
  [[nodiscard]] bool is_stage_3() const { return is_stage_3_; }
  [[nodiscard]] const std::vector<Group>& groups() const { return groups_; }

  /// `flat_of(rank)`: its flat tensors, one for each group (stage 3: in any number).
  template <typename FlatOf>
  Named values(FlatOf&& flat_of) const {
    std::vector<Tensors> of_ranks;
    for (size_t rank = 0; rank < optimizers_.size(); ++rank)
      of_ranks.push_back(within(fmt::format("'{}'", optimizers_[rank].name), [&] { return flat_of(rank); }));
    return is_stage_3_ ? pieces(of_ranks) : partitions(of_ranks);
  }

  [[nodiscard]] Tensors weights_of(size_t rank) const {
    return tensors_of(attribute(state_of(rank), is_stage_3_ ? stage_3_weights : other_weights));
  }

  [[nodiscard]] Named weights() const {
    return values([&](size_t rank) { return weights_of(rank); });
  }

  /// Parameters that are not trained have no part in the optimizer's states.
  Named frozen() const {
    Named out;
    if (!has_frozen()) return out;
    for (const Parameter& one : group_of(*find_attribute(model(), "frozen_param_shapes"))) {
      Tensors fragments;
      const size_t count = is_stage_3_ ? models_.size() : 1;
      for (size_t rank = 0; rank < count; ++rank)
        fragments.push_back(attribute(attribute(models_[rank].root, "frozen_param_fragments"), one.name)
                                .as_tensor()
                                .reshape({-1}));
      out[one.name] = within(quote(one.name), [&] { return cut(joined(fragments), 0, one); });
    }
    return out;
  }

  /// The moments of each parameter under its name; what has not the size of the parameters is that of rank 0.
  Value optimizer() const {
    Value out = Value::dict();
    const Value* base = base_of(0);
    if (base == nullptr) return out;
    std::vector<std::pair<std::string, Named>> moments;
    std::vector<std::pair<std::string, Value>> others;
    const std::vector<const Value*> first = states_of(0);
    const Tensors flat = weights_of(0);
    const int64_t first_numel = flat.empty() ? 0 : flat.front().numel();
    const Value none = Value::dict();
    for (const auto& [key, value] : (first.empty() ? none : *first.front()).as_dict().entries()) {
      const std::string& name = key.as_string();
      const bool is_flat = value.is(Value::Kind::tensor) && value.as_tensor().numel() == first_numel;
      if (is_flat) moments.emplace_back(name, moments_of(name));
      if (!is_flat) others.emplace_back(name, value);
    }
    Value states = Value::dict();
    for (const Group& group : groups_) {
      for (const Parameter& one : group) {
        Value state = Value::dict();
        for (const auto& [name, value] : others) state.as_dict().set(name, value);
        for (const auto& [name, named] : moments) state.as_dict().set(name, named.at(one.name));
        if (!state.as_dict().empty()) states.as_dict().set(one.name, state);
      }
    }
    out.as_dict().set("state", states);
    if (const Value* groups = base->find("param_groups")) out.as_dict().set("param_groups", *groups);
    if (const Value* scaler = find_attribute(state_of(0), "loss_scaler"))
      out.as_dict().set("loss_scaler", *scaler);
    return out;
  }

 private:
  [[nodiscard]] const Value& state_of(size_t rank) const {
    return within(fmt::format("'{}'", optimizers_[rank].name), [&]() -> const Value& {
      return attribute(optimizers_[rank].root, "optimizer_state_dict");
    });
  }
  [[nodiscard]] bool has_frozen() const { return needs_all_models(models_.front()); }

  /// The state of the optimizer that ZeRO wraps.
  [[nodiscard]] const Value* base_of(size_t rank) const {
    for (const char* name : {"base_optimizer_state", "optimizer_state_dict"})
      if (const Value* found = find_attribute(state_of(rank), name)) return found;
    return nullptr;
  }

  /// Its states, one dict for each flat tensor.
  [[nodiscard]] std::vector<const Value*> states_of(size_t rank) const {
    std::vector<const Value*> out;
    const Value* base = base_of(rank);
    if (base == nullptr) return out;
    if (base->is(Value::Kind::sequence)) {
      for (const Value& item : base->as_sequence().items) out.push_back(&item);
    } else if (const Value* state = find_attribute(*base, "state")) {
      std::map<int64_t, const Value*> by_number;
      for (const auto& [number, item] : state->as_dict().entries()) by_number[number.as_int()] = &item;
      for (const auto& [number, item] : by_number) out.push_back(item);
    }
    return out;
  }

  Named moments_of(const std::string& name) const {
    return values([&](size_t rank) {
      Tensors out;
      for (const Value* state : states_of(rank))
        out.push_back(attribute(*state, name).as_tensor().reshape({-1}));
      return out;
    });
  }

  static Tensor cut(const Tensor& flat, int64_t offset, const Parameter& one) {
    if (one.numel > flat.numel() - offset)
      fail(Errc::format, "it needs the elements up to {}, but there are {}", offset + one.numel,
           flat.numel());
    return flat.slice(0, offset, offset + one.numel).reshape(one.shape);
  }

  /// Stages 1 and 2: the partitions of a group, one after another, are its parameters and padding.
  Named partitions(const std::vector<Tensors>& of_ranks) const {
    Named out;
    for (size_t g = 0; g < groups_.size(); ++g) {
      Tensors flat;
      for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
        if (of_ranks[rank].size() != groups_.size())
          fail(Errc::format, "'{}' has {} groups instead of {}", optimizers_[rank].name,
               of_ranks[rank].size(), groups_.size());
        flat.push_back(of_ranks[rank][g]);
      }
      const Tensor whole = joined(flat);
      int64_t offset = 0;
      for (const Parameter& one : groups_[g]) {
        out[one.name] = within(quote(one.name), [&] { return cut(whole, offset, one); });
        offset += one.numel;
      }
      const auto align = 2 * static_cast<int64_t>(of_ranks.size());
      const auto aligned = [&](int64_t count) { return (count + align - 1) / align * align; };
      if (aligned(offset) != aligned(whole.numel()))
        fail(Errc::format, "group {} has {} elements, and its parameters {}", g, whole.numel(), offset);
    }
    return out;
  }

  /// Stage 3: each rank has ceil(numel / ranks) elements of each parameter.
  Named pieces(const std::vector<Tensors>& of_ranks) const {
    Named out;
    const auto ranks = static_cast<int64_t>(of_ranks.size());
    Tensors flat;
    for (const Tensors& tensors : of_ranks) {
      if (tensors.empty()) fail(Errc::format, "a rank has no elements");
      flat.push_back(joined(tensors));
    }
    int64_t offset = 0;
    for (const Group& group : groups_) {
      for (const Parameter& one : group) {
        const int64_t size = (one.numel + ranks - 1) / ranks;
        out[one.name] = within(quote(one.name), [&] {
          Tensors parts;
          for (size_t rank = 0; rank < flat.size(); ++rank) {
            if (size > flat[rank].numel() - offset)
              fail(Errc::format, "'{}' has {} elements, and should have more than {}", optimizers_[rank].name,
                   flat[rank].numel(), offset);
            parts.push_back(flat[rank].slice(0, offset, offset + size));
          }
          return cut(joined(parts), 0, one);
        });
        offset += size;
      }
    }
    for (size_t rank = 0; rank < flat.size(); ++rank)
      if (flat[rank].numel() != offset)
        fail(Errc::format, "'{}' has {} elements, and its parameters {}", optimizers_[rank].name,
             flat[rank].numel(), offset);
    return out;
  }

  std::vector<Part> models_;
  std::vector<Part> optimizers_;
  std::vector<Group> groups_;
  bool is_stage_3_ = false;
};

/// The joined weight with which a 16-bit tensor of the module is tied; else that tensor.
Value tied_in(const Dict& module, const Value& value, const Value& joined) {
  if (!value.is(Value::Kind::tensor)) return value;
  for (const auto& [key, other] : module.entries()) {
    const Value* weight = joined.find(key_text(key));
    if (weight != nullptr && other.is(Value::Kind::tensor) && other.as_tensor().same_data(value.as_tensor()))
      return *weight;
  }
  return value;
}

/// In the order of the model's file: weights in float32, buffers as float32, aliases as the tensors that they
/// are tied to.
Value module_of(const Zero& zero, MemoryBudget& memory) {
  const Named weights = zero.weights();
  const Named frozen = zero.frozen();
  std::set<std::string> buffers;
  if (const Value* names = find_attribute(zero.model(), "buffer_names"))
    for (const Value& name : names->as_sequence().items) buffers.insert(name.as_string());
  Value out = Value::dict();
  const auto add = [&](const std::string& name, Value value) {
    memory.charge(entry_bytes + name.size());
    out.as_dict().set(name, std::move(value));
  };
  std::vector<std::pair<std::string, Value>> others;
  const Dict& module = attribute(zero.model(), "module").as_dict();
  for (const auto& [key, value] : module.entries()) {
    const std::string name = key_text(key);
    const bool is_buffer = buffers.contains(name);
    if (auto found = weights.find(name); found != weights.end()) {
      add(name, found->second);
    } else if (auto fixed = frozen.find(name); fixed != frozen.end()) {
      add(name, fixed->second);
    } else if (is_buffer && value.is(Value::Kind::tensor)) {
      add(name, value.as_tensor().cast(DType::float32));
    } else {
      others.emplace_back(name, value);
    }
  }
  for (const Named* all : {&weights, &frozen})
    for (const auto& [name, tensor] : *all)
      if (out.find(name) == nullptr) add(name, tensor);
  if (const Value* shared = find_attribute(zero.model(), "shared_params")) {
    for (const auto& [alias, name] : shared->as_dict().entries()) {
      const Value* weight = out.find(name.as_string());
      if (weight == nullptr)
        fail(Errc::format, "{} is tied to {}, which is not there", quote(alias.as_string()),
             quote(name.as_string()));
      add(alias.as_string(), *weight);
    }
  }
  for (const auto& [name, value] : others) {
    if (out.find(name) != nullptr) continue;
    const bool is_empty = value.is(Value::Kind::tensor) && value.as_tensor().numel() == 0;
    if (is_empty && zero.is_stage_3())
      fail(Errc::format, "{} has no elements in the model's files, and no shape and no parts elsewhere",
           quote(name));
    add(name, tied_in(module, value, out));
  }
  return out;
}

}  // namespace

namespace {

/// Optimizers may keep more than moments of the parameters' sizes: then they are not joined, and the weights
/// are.
Value optimizer_of(const Zero& zero) {
  try {
    return zero.optimizer();
  } catch (const Error& error) {
    return unreadable(fmt::format("the optimizer's states are not joined: {}", error.what()));
  }
}

}  // namespace

Value join_zero(std::vector<Part> models, std::vector<Part> optimizers, MemoryBudget& memory) {
  const Zero zero(std::move(models), std::move(optimizers));
  Value out = Value::dict();
  for (const auto& [key, value] : zero.model().as_dict().entries()) {
    const std::string name = key_text(key);
    if (name == "module") {
      out.as_dict().set(key, module_of(zero, memory));
    } else if (name == "optimizer") {
      out.as_dict().set(key, optimizer_of(zero));
    } else if (std::ranges::find(layout, name) == layout.end()) {
      out.as_dict().set(key, value);
    }
  }
  return out;
}

bool needs_all_models(const Part& model) {
  const Value* shapes = find_attribute(model.root, "frozen_param_shapes");
  return shapes != nullptr && shapes->is(Value::Kind::dict) && !shapes->as_dict().empty();
}

}  // namespace cbk::ranks
