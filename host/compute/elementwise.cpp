#include "host/compute/elementwise.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "host/base/error.hpp"
#include "host/base/parallel.hpp"
#include "host/compute/strided.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk::compute {
namespace {

constexpr int64_t block_bytes = 2048;  // of a slot: a dozen and the operands fit into the first cache
constexpr int64_t blocks_per_task = 64;
constexpr int64_t cached_bytes = 4 << 20;  // of the inputs: below, prefetches cost more than they gain
constexpr int64_t slot_bytes = block_bytes + 64;
constexpr int no_output = -1;

std::vector<Operand> inputs_of(const ElementChain& chain) {
  return chain.inputs;
}

std::vector<Operand> outputs_of(const ElementChain& chain) {
  std::vector<Operand> out;
  for (const auto& output : chain.outputs) out.push_back(output.to);
  return out;
}

bool is_scalar(const Operand& view) {
  for (size_t i = 0; i < view.shape.size(); ++i) {
    if (view.shape[i] != 1 && view.strides[i] != 0) return false;
  }
  return true;
}

/// One element as T.
template <typename T>
T element(const Operand& view, DType type) {
  T out{};
  cast_elements(view.dtype, view.bytes(), type, reinterpret_cast<std::byte*>(&out), 1);
  return out;
}

std::byte* scratch_of(size_t size) {
  thread_local std::vector<std::byte> scratch;
  if (scratch.size() < size) scratch.resize(size);
  return scratch.data();
}

/// Keeps the used values, in their order, and their new numbers.
class Pruner {
 public:
  explicit Pruner(const ElementChain& chain) : chain_(chain) {
    input_.resize(chain.inputs.size(), unused);
    constant_.resize(chain.constants.size(), unused);
    step_.resize(chain.steps.size(), unused);
    out_.type = chain.type;
    out_.domain = chain.domain;
  }

  ElementChain run() {
    std::vector<ElementChain::Output> outputs = chain_.outputs;
    for (auto& output : outputs) {
      while (is_copy_of_step(output.value)) output.value = chain_.steps[output.value.index].operands[0];
      mark(output.value);
    }
    for (size_t s = chain_.steps.size(); s-- > 0;) {
      const auto& step = chain_.steps[s];
      for (int i = 0; step_[s] != unused && i < traits_of(step.op).operands; ++i) mark(step.operands[i]);
    }
    take(input_, chain_.inputs, out_.inputs);
    take(constant_, chain_.constants, out_.constants);
    take(step_, chain_.steps, out_.steps);
    for (auto& step : out_.steps) {
      for (int i = 0; i < traits_of(step.op).operands; ++i) renumber(step.operands[i]);
    }
    for (auto& output : outputs) renumber(output.value);
    out_.outputs = std::move(outputs);
    return std::move(out_);
  }

 private:
  static constexpr int unused = -1;

  [[nodiscard]] bool is_copy_of_step(ChainValue value) const {
    return value.kind == ChainValue::Kind::step && chain_.steps[value.index].op == ElementOp::copy &&
           chain_.steps[value.index].operands[0].kind == ChainValue::Kind::step;
  }

  std::vector<int>& numbers(ChainValue::Kind kind) {
    if (kind == ChainValue::Kind::input) return input_;
    return kind == ChainValue::Kind::constant ? constant_ : step_;
  }
  void mark(ChainValue value) { numbers(value.kind)[value.index] = 0; }
  void renumber(ChainValue& value) { value.index = numbers(value.kind)[value.index]; }

  template <typename T>
  static void take(std::vector<int>& numbers, const std::vector<T>& from, std::vector<T>& to) {
    for (size_t i = 0; i < from.size(); ++i) {
      if (numbers[i] == unused) continue;
      numbers[i] = static_cast<int>(to.size());
      to.push_back(from[i]);
    }
  }

  const ElementChain& chain_;
  ElementChain out_;
  std::vector<int> input_, constant_, step_;  // new numbers
};

}  // namespace

ElementChain pruned(const ElementChain& chain) {
  return Pruner(chain).run();
}

Elementwise::Elementwise(ElementChain chain)
    : Kernel(inputs_of(chain), outputs_of(chain)), chain_(std::move(chain)), numel_(numel_of(chain_.domain)) {
  if (is_floating(chain_.type)) return;
  for (const auto& step : chain_.steps) {
    if (find_loop<int64_t>(step.op, 0) == nullptr) {
      fail(Errc::dtype, "{} of {} numbers is not possible: cast them to float32 first",
           traits_of(step.op).name, name_of(chain_.type));
    }
  }
}

int Elementwise::number(ChainValue value) const {
  if (value.kind == ChainValue::Kind::input) return value.index;
  const int inputs = static_cast<int>(chain_.inputs.size());
  if (value.kind == ChainValue::Kind::constant) return inputs + value.index;
  return inputs + static_cast<int>(chain_.constants.size()) + value.index;
}

template <typename T>
void Elementwise::plan() {
  views_ = reads_;
  views_.insert(views_.end(), writes_.begin(), writes_.end());
  collapse(views_);
  const size_t inputs = chain_.inputs.size();
  const size_t values = inputs + chain_.constants.size() + chain_.steps.size();
  sources_.assign(values, {Source::Kind::scalar, 0});
  stores_.assign(values, no_output);
  scalars_.resize(values * 8);
  for (size_t i = 0; i < inputs; ++i) {
    const Operand& view = views_[i];
    if (is_scalar(view)) continue;
    const bool is_direct = view.dtype == chain_.type && view.is_contiguous();
    sources_[i] = {is_direct ? Source::Kind::memory : Source::Kind::slot, static_cast<int>(i)};
    (is_direct ? prefetched_ : loads_).push_back(static_cast<int>(i));
  }
  if (numel_ * static_cast<int64_t>(sizeof(T) * prefetched_.size()) < cached_bytes) prefetched_.clear();
  for (size_t i = 0; i < chain_.constants.size(); ++i) {
    cast_elements(DType::float64, reinterpret_cast<const std::byte*>(&chain_.constants[i]), chain_.type,
                  scalars_.data() + (inputs + i) * 8, 1);
  }
  for (size_t s = 0; s < chain_.steps.size(); ++s) {
    const auto& step = chain_.steps[s];
    Planned planned;
    planned.op = step.op;
    planned.count = traits_of(step.op).operands;
    planned.result = number({ChainValue::Kind::step, static_cast<int>(s)});
    unsigned scalars = 0;
    for (int i = 0; i < planned.count; ++i) {
      planned.operands[i] = number(step.operands[i]);
      if (sources_[planned.operands[i]].kind == Source::Kind::scalar)
        scalars |= 1U << static_cast<unsigned>(i);
    }
    const bool all_scalar = scalars == (1U << static_cast<unsigned>(planned.count)) - 1;
    planned.loop = find_loop<T>(step.op, all_scalar ? 0 : scalars);
    if (!all_scalar) sources_[planned.result] = {Source::Kind::slot, 0};
    (all_scalar ? scalar_steps_ : vector_steps_).push_back(planned);
  }
  for (size_t i = 0; i < chain_.outputs.size(); ++i) {
    const Operand& view = views_[inputs + i];
    const int value = number(chain_.outputs[i].value);
    const bool is_direct = chain_.outputs[i].value.kind == ChainValue::Kind::step &&
                           view.dtype == chain_.type && view.is_contiguous() &&
                           sources_[value].kind == Source::Kind::slot && stores_[value] == no_output &&
                           !is_read_after(chain_.outputs[i].value.index, view);
    if (is_direct) {
      stores_[value] = static_cast<int>(inputs + i);
    } else {
      late_stores_.push_back(static_cast<int>(i));
    }
  }
  if constexpr (std::is_same_v<T, float>) join_pairs();
  give_slots();
}

/// Whether a later step reads, from memory, what an output writes: a copy that is pruned away was made after
/// the value that it copies.
bool Elementwise::is_read_after(int step, const Operand& written) const {
  for (size_t s = static_cast<size_t>(step) + 1; s < chain_.steps.size(); ++s) {
    for (int i = 0; i < traits_of(chain_.steps[s].op).operands; ++i) {
      const ChainValue operand = chain_.steps[s].operands[i];
      if (operand.kind != ChainValue::Kind::input) continue;
      if (sources_[operand.index].kind == Source::Kind::memory &&
          views_[operand.index].buffer == written.buffer)
        return true;
    }
  }
  return false;
}

/// Joins two operations into one loop if nothing else needs the result of the first.
void Elementwise::join_pairs() {
  std::vector<int> uses(sources_.size(), 0);
  for (const Planned& step : vector_steps_) {
    for (int i = 0; i < step.count; ++i) ++uses[step.operands[i]];
  }
  for (const auto& output : chain_.outputs) ++uses[number(output.value)];
  for (size_t second = 1; second < vector_steps_.size(); ++second) {
    // The first moves to the second: nothing between them may write its inputs.
    for (size_t first = second; first-- > 0 && stores_[vector_steps_[first].result] == no_output;) {
      if (uses[vector_steps_[first].result] != 1 || !join(first, second)) continue;
      --second;
      break;
    }
  }
}

/// Joins two steps; returns whether `second` now also does the work of `first`.
bool Elementwise::join(size_t first, size_t second) {
  const Planned& one = vector_steps_[first];
  Planned& two = vector_steps_[second];
  const bool is_last = two.operands[1] == one.result;
  if (one.is_pair || two.count != 2 || (!is_last && two.operands[0] != one.result)) return false;
  Planned pair = two;
  pair.operands = {one.operands[0], one.operands[one.count - 1], two.operands[is_last ? 0 : 1]};
  pair.count = 3;
  pair.is_pair = true;
  unsigned scalars = 0;
  for (int i = 0; i < 3; ++i) {
    if (sources_[pair.operands[i]].kind == Source::Kind::scalar) scalars |= 1U << static_cast<unsigned>(i);
  }
  pair.loop = find_pair(one.op, two.op, is_last, scalars);
  if (one.count > 2 || pair.loop == nullptr) return false;
  two = pair;
  vector_steps_.erase(vector_steps_.begin() + static_cast<int64_t>(first));
  return true;
}

/// Assigns slots. They are reused after the last step that reads them.
void Elementwise::give_slots() {
  std::vector<int> last_use(sources_.size(), -1);
  for (size_t s = 0; s < vector_steps_.size(); ++s) {
    for (int i = 0; i < vector_steps_[s].count; ++i)
      last_use[vector_steps_[s].operands[i]] = static_cast<int>(s);
  }
  for (const int i : late_stores_)
    last_use[number(chain_.outputs[i].value)] = static_cast<int>(vector_steps_.size());
  std::vector<int> free;
  const auto take = [&](int value) {
    if (free.empty()) free.push_back(slots_++);
    sources_[value].index = free.back();
    free.pop_back();
  };
  for (const int input : loads_) take(input);
  for (size_t s = 0; s < vector_steps_.size(); ++s) {
    const Planned& step = vector_steps_[s];
    // A loop may write where it reads, so the slots of operands that end here are reused for the result.
    for (int i = 0; i < step.count; ++i) {
      const int value = step.operands[i];
      const bool is_repeated =
          std::find(step.operands.begin(), step.operands.begin() + i, value) != step.operands.begin() + i;
      if (last_use[value] == static_cast<int>(s) && !is_repeated &&
          sources_[value].kind == Source::Kind::slot && stores_[value] == no_output) {
        free.push_back(sources_[value].index);
      }
    }
    if (stores_[step.result] == no_output) take(step.result);
  }
}

void Elementwise::run() {
  if (numel_ == 0) return;
  if (chain_.type == DType::float32) return run_typed<float>();
  if (chain_.type == DType::float64) return run_typed<double>();
  run_typed<int64_t>();
}

template <typename T>
void Elementwise::run_scalars() {
  const auto at = [&](int value) { return scalars_.data() + static_cast<size_t>(value) * 8; };
  for (size_t i = 0; i < chain_.inputs.size(); ++i) {
    if (sources_[i].kind != Source::Kind::scalar) continue;
    const T value = element<T>(views_[i], chain_.type);
    std::memcpy(at(static_cast<int>(i)), &value, sizeof value);
  }
  for (const Planned& step : scalar_steps_) {
    step.loop(at(step.operands[0]), step.count > 1 ? at(step.operands[1]) : nullptr,
              step.count > 2 ? at(step.operands[2]) : nullptr, at(step.result), 1);
  }
}

template <typename T>
void Elementwise::run_typed() {
  if (sources_.empty()) plan<T>();
  run_scalars<T>();
  constexpr int64_t task_size = block_bytes / static_cast<int64_t>(sizeof(T)) * blocks_per_task;
  const int64_t tasks = (numel_ + task_size - 1) / task_size;
  if (tasks == 1) return run_task<T>(0);
  parallel_for(tasks, [this](int64_t task) { run_task<T>(task); });
}

template <typename T>
void Elementwise::run_task(int64_t task) {
  constexpr int64_t block = block_bytes / static_cast<int64_t>(sizeof(T));
  std::byte* scratch = scratch_of(static_cast<size_t>(slots_ + 3) * slot_bytes);
  const int64_t end = std::min(numel_, (task + 1) * block * blocks_per_task);
  for (int64_t begin = task * block * blocks_per_task; begin < end; begin += block) {
    run_block<T>(begin, std::min(block, end - begin), scratch);
  }
}

/// Prefetches the part of the next block that is due before a step. All of it at once would stall the step.
void Elementwise::prefetch(int64_t next, size_t step) const {
  constexpr size_t line = 64;
  constexpr size_t lines = block_bytes / line;
  const size_t steps = vector_steps_.size();
  for (const int input : prefetched_) {
    const std::byte* block = views_[input].bytes() + next;
    for (size_t i = lines * step / steps; i < lines * (step + 1) / steps; ++i)
      __builtin_prefetch(block + i * line);
  }
}

template <typename T>
void Elementwise::run_block(int64_t begin, int64_t count, std::byte* scratch) const {
  const size_t inputs = chain_.inputs.size();
  std::byte* raw =
      scratch + static_cast<size_t>(slots_) * slot_bytes;  // elements of another dtype, up to twice as wide
  const auto address = [&](int value) -> std::byte* {
    const Source& source = sources_[value];
    if (source.kind == Source::Kind::scalar)
      return const_cast<std::byte*>(scalars_.data()) + static_cast<size_t>(value) * 8;
    if (source.kind == Source::Kind::memory)
      return views_[source.index].bytes() + begin * static_cast<int64_t>(sizeof(T));
    if (stores_[value] != no_output)
      return views_[stores_[value]].bytes() + begin * static_cast<int64_t>(sizeof(T));
    return scratch + static_cast<size_t>(source.index) * slot_bytes;
  };
  for (const int input : loads_) {
    const Operand& view = views_[input];
    if (view.dtype == chain_.type) {
      gather(view, begin, count, address(input));
    } else {
      gather(view, begin, count, raw);
      cast_elements(view.dtype, raw, chain_.type, address(input), count);
    }
  }
  const bool has_next = begin + 2 * count <= numel_;
  for (size_t s = 0; s < vector_steps_.size(); ++s) {
    const Planned& step = vector_steps_[s];
    if (has_next) prefetch((begin + count) * static_cast<int64_t>(sizeof(T)), s);
    step.loop(address(step.operands[0]), step.count > 1 ? address(step.operands[1]) : nullptr,
              step.count > 2 ? address(step.operands[2]) : nullptr, address(step.result),
              static_cast<size_t>(count));
  }
  for (const int i : late_stores_) {
    const Operand& view = views_[inputs + i];
    const int value = number(chain_.outputs[i].value);
    std::byte* from = address(value);
    if (sources_[value].kind == Source::Kind::scalar) {
      T* repeated = reinterpret_cast<T*>(raw + 2 * slot_bytes);
      std::fill_n(repeated, count, *reinterpret_cast<const T*>(from));
      from = reinterpret_cast<std::byte*>(repeated);
    }
    if (view.dtype != chain_.type) {
      cast_elements(chain_.type, from, view.dtype, raw, count);
      from = raw;
    }
    scatter(view, begin, count, from);
  }
}

}  // namespace cbk::compute
