#include "host/compute/fuse.hpp"

#include <algorithm>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "host/compute/elementwise.hpp"

namespace cbk::compute {
namespace {

constexpr size_t most_steps = 64;
constexpr size_t most_operands = 24;

bool touches(const std::vector<Operand>& operands, const Buffer* buffer) {
  return std::any_of(operands.begin(), operands.end(),
                     [&](const Operand& o) { return o.buffer.get() == buffer; });
}

/// Readers of each buffer: positions in the recorded order.
using Readers = std::unordered_map<const Buffer*, std::vector<size_t>>;

/// A chain to which kernels are added one by one.
class Group {
 public:
  [[nodiscard]] bool is_empty() const { return members_.empty(); }
  [[nodiscard]] int64_t numel() const { return numel_of(chain_.domain); }

  void open(RecordedStep step, size_t position) {
    condition_ = step.condition;
    flag_ = step.flag;
    const auto& chain = static_cast<Elementwise&>(*step.kernel).chain();
    chain_.type = chain.type;
    chain_.domain = chain.domain;
    append(std::move(step), position);
  }

  /// `following`: kernels after it. A kernel that shares no data is added if a near one needs both.
  [[nodiscard]] bool can_join(const RecordedStep& step, std::span<const RecordedStep> following) const {
    const auto* kernel = dynamic_cast<const Elementwise*>(step.kernel.get());
    if (kernel == nullptr || is_empty() || step.condition != condition_) return false;
    const ElementChain& chain = kernel->chain();
    if (chain.type != chain_.type || chain.domain != chain_.domain) return false;
    if (chain_.steps.size() + chain.steps.size() > most_steps) return false;
    if (chain_.inputs.size() + chain_.outputs.size() + chain.inputs.size() + chain.outputs.size() >
        most_operands)
      return false;
    return (shares_data(*kernel) || is_bridged(*kernel, following)) && reads_what_it_can(chain) &&
           writes_what_it_can(chain);
  }

  void append(RecordedStep step, size_t position) {
    const ElementChain& chain = static_cast<Elementwise&>(*step.kernel).chain();
    std::vector<ChainValue> inputs;
    for (const Operand& input : chain.inputs) inputs.push_back(value_of(input));
    const int constants = static_cast<int>(chain_.constants.size());
    const int steps = static_cast<int>(chain_.steps.size());
    const auto translated = [&](ChainValue value) {
      if (value.kind == ChainValue::Kind::input) return inputs[value.index];
      value.index += value.kind == ChainValue::Kind::constant ? constants : steps;
      return value;
    };
    chain_.constants.insert(chain_.constants.end(), chain.constants.begin(), chain.constants.end());
    for (ElementChain::Step one : chain.steps) {
      for (int i = 0; i < traits_of(one.op).operands; ++i) one.operands[i] = translated(one.operands[i]);
      chain_.steps.push_back(one);
    }
    for (const auto& output : chain.outputs) set_output({output.to, translated(output.value)});
    members_.push_back(position);
    last_ = std::move(step);
  }

  /// Whether the kernel may run before the chain.
  [[nodiscard]] bool is_independent_of(const RecordedStep& step) const {
    for (const Operand& read : step.kernel->reads()) {
      if (writes(read.buffer.get())) return false;
    }
    if (step.flag && writes(step.flag.get())) return false;
    for (const Operand& written : step.kernel->writes()) {
      const Buffer* buffer = written.buffer.get();
      if (writes(buffer) || touches(chain_.inputs, buffer) || flag_.get() == buffer) return false;
    }
    return true;
  }

  /// The chain as one kernel, without outputs that are not read elsewhere.
  RecordedStep close(const Readers& readers, const std::unordered_set<const Buffer*>& kept) {
    RecordedStep out;
    if (members_.size() == 1) {
      out = std::move(last_);
    } else {
      std::erase_if(chain_.outputs,
                    [&](const ElementChain::Output& output) { return !is_needed(output.to, readers, kept); });
      out = {std::make_unique<Elementwise>(pruned(chain_)), condition_, flag_};
    }
    *this = Group();
    return out;
  }

 private:
  [[nodiscard]] bool writes(const Buffer* buffer) const {
    return std::any_of(chain_.outputs.begin(), chain_.outputs.end(),
                       [&](const auto& output) { return output.to.buffer.get() == buffer; });
  }

  [[nodiscard]] bool shares_data(const Kernel& kernel) const {
    const auto is_known = [&](const Operand& operand) {
      return touches(chain_.inputs, operand.buffer.get()) || writes(operand.buffer.get());
    };
    return std::any_of(kernel.reads().begin(), kernel.reads().end(), is_known) ||
           std::any_of(kernel.writes().begin(), kernel.writes().end(), is_known);
  }

  /// Whether one of the kernels right after it needs its result and data of the chain.
  [[nodiscard]] bool is_bridged(const Kernel& kernel, std::span<const RecordedStep> following) const {
    constexpr size_t near = 6;
    for (const RecordedStep& next : following.first(std::min(near, following.size()))) {
      const bool needs_it = std::any_of(
          kernel.writes().begin(), kernel.writes().end(),
          [&](const Operand& written) { return touches(next.kernel->reads(), written.buffer.get()); });
      if (needs_it)
        return dynamic_cast<const Elementwise*>(next.kernel.get()) != nullptr && shares_data(*next.kernel);
    }
    return false;
  }

  /// A value of the chain can be read only at the same position, and only if it needs no rounding.
  [[nodiscard]] bool reads_what_it_can(const ElementChain& chain) const {
    for (const Operand& input : chain.inputs) {
      for (const auto& output : chain_.outputs) {
        if (output.to.buffer != input.buffer) continue;
        if (!output.to.is_same_view(input) || !is_exact(output)) return false;
      }
    }
    return true;
  }

  [[nodiscard]] bool is_exact(const ElementChain::Output& output) const {
    if (output.to.dtype == chain_.type) return true;
    return output.to.dtype == DType::boolean && output.value.kind == ChainValue::Kind::step &&
           traits_of(chain_.steps[output.value.index].op).is_predicate();
  }

  [[nodiscard]] bool writes_what_it_can(const ElementChain& chain) const {
    for (const auto& output : chain.outputs) {
      for (const Operand& input : chain_.inputs) {
        if (input.buffer == output.to.buffer && !input.is_same_view(output.to)) return false;
      }
      for (const auto& earlier : chain_.outputs) {
        if (earlier.to.buffer == output.to.buffer && !earlier.to.is_same_view(output.to)) return false;
      }
    }
    return true;
  }

  ChainValue value_of(const Operand& input) {
    for (const auto& output : chain_.outputs) {
      if (output.to.is_same_view(input)) return output.value;
    }
    for (size_t i = 0; i < chain_.inputs.size(); ++i) {
      if (chain_.inputs[i].is_same_view(input)) return {ChainValue::Kind::input, static_cast<int>(i)};
    }
    chain_.inputs.push_back(input);
    return {ChainValue::Kind::input, static_cast<int>(chain_.inputs.size()) - 1};
  }

  void set_output(ElementChain::Output output) {
    for (auto& earlier : chain_.outputs) {
      if (earlier.to.is_same_view(output.to)) {
        earlier.value = output.value;
        return;
      }
    }
    chain_.outputs.push_back(std::move(output));
  }

  [[nodiscard]] bool is_needed(const Operand& to, const Readers& readers,
                               const std::unordered_set<const Buffer*>& kept) const {
    const Buffer* buffer = to.buffer.get();
    if (to.buffer->has_memory() || kept.contains(buffer)) return true;
    const auto found = readers.find(buffer);
    if (found == readers.end()) return false;
    return !std::all_of(found->second.begin(), found->second.end(), [&](size_t reader) {
      return std::find(members_.begin(), members_.end(), reader) != members_.end();
    });
  }

  ElementChain chain_;
  std::vector<size_t> members_;
  int condition_ = no_condition;
  BufferPtr flag_;
  RecordedStep last_;
};

Readers readers_of(const std::vector<RecordedStep>& steps) {
  Readers readers;
  for (size_t i = 0; i < steps.size(); ++i) {
    for (const Operand& read : steps[i].kernel->reads()) readers[read.buffer.get()].push_back(i);
    if (steps[i].flag) readers[steps[i].flag.get()].push_back(i);
  }
  return readers;
}

}  // namespace

std::vector<RecordedStep> fuse(std::vector<RecordedStep> steps, const std::vector<BufferPtr>& kept) {
  const Readers readers = readers_of(steps);
  std::unordered_set<const Buffer*> kept_set;
  for (const BufferPtr& buffer : kept) kept_set.insert(buffer.get());
  std::vector<RecordedStep> out;
  Group group;
  const auto close = [&] {
    if (!group.is_empty()) out.push_back(group.close(readers, kept_set));
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    RecordedStep& step = steps[i];
    if (group.can_join(step, std::span<const RecordedStep>(steps).subspan(i + 1))) {
      group.append(std::move(step), i);
      continue;
    }
    const auto* elementwise = dynamic_cast<const Elementwise*>(step.kernel.get());
    const bool is_larger = elementwise != nullptr &&
                           (group.is_empty() || numel_of(elementwise->chain().domain) >= group.numel());
    if (!group.is_empty() && !is_larger && group.is_independent_of(step)) {
      out.push_back(std::move(step));
      continue;
    }
    close();
    if (elementwise != nullptr) {
      group.open(std::move(step), i);
    } else {
      out.push_back(std::move(step));
    }
  }
  close();
  return out;
}

}  // namespace cbk::compute
