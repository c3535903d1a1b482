#include "host/compute/program.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <unordered_map>

#include "host/base/error.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk::compute {
namespace {

/// Places in one piece of memory, allocated and freed in the order of the steps.
class Arena {
 public:
  uint64_t take(uint64_t size) {
    size = rounded(size);
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->second >= size && (best == free_.end() || it->second < best->second)) best = it;
    }
    if (best == free_.end()) {
      const uint64_t offset = end_;
      end_ += size;
      return offset;
    }
    const auto [offset, length] = *best;
    free_.erase(best);
    if (length > size) free_.emplace(offset + size, length - size);
    return offset;
  }

  void give_back(uint64_t offset, uint64_t size) {
    auto it = free_.emplace(offset, rounded(size)).first;
    const auto next = std::next(it);
    if (next != free_.end() && it->first + it->second == next->first) {
      it->second += next->second;
      free_.erase(next);
    }
    if (it != free_.begin()) {
      const auto before = std::prev(it);
      if (before->first + before->second == it->first) {
        before->second += it->second;
        free_.erase(it);
      }
    }
  }

  [[nodiscard]] uint64_t size() const { return end_; }

 private:
  static uint64_t rounded(uint64_t size) {
    return (size + buffer_alignment - 1) / buffer_alignment * buffer_alignment;
  }
  std::map<uint64_t, uint64_t> free_;  // offset to length
  uint64_t end_ = 0;
};

bool is_true(const Operand& flag) {
  double value = 0;
  cast_elements(flag.dtype, flag.bytes(), DType::float64, reinterpret_cast<std::byte*>(&value), 1);
  return value != 0;
}

}  // namespace

Program::Program(Reading reading) : reading_(reading) {
  static std::atomic<uint64_t> count{0};
  number_ = ++count;
}

Program::~Program() {
  for (const BufferPtr& buffer : placed_) buffer->displace();
}

void Program::record(KernelPtr kernel) {
  BufferPtr flag = open_condition_ == no_condition ? nullptr : conditions_[open_condition_].flag.buffer;
  steps_.push_back({std::move(kernel), open_condition_, std::move(flag)});
  ++size_.recorded;
}

void Program::begin_condition(const Operand& flag) {
  conditions_.push_back({flag, open_condition_});
  open_condition_ = static_cast<int>(conditions_.size()) - 1;
}

void Program::end_condition() {
  open_condition_ = conditions_[open_condition_].outer;
}

void Program::keep(const BufferPtr& buffer) {
  kept_.push_back(buffer);
}

void Program::run_early() {
  for (RecordedStep& step : steps_) {
    for (const auto* operands : {&step.kernel->reads(), &step.kernel->writes()}) {
      for (const Operand& operand : *operands) {
        if (operand.buffer->has_memory()) continue;
        operand.buffer->place(allocate_arena(operand.buffer->size()), 0);
      }
    }
  }
  truths_.assign(conditions_.size(), Truth::unknown);
  for (RecordedStep& step : steps_) {
    if (holds(step.condition)) step.kernel->run();
  }
  steps_.clear();
}

void Program::finish() {
  steps_ = fuse(std::move(steps_), kept_);
  size_.kernels = steps_.size();
  place_buffers();
  truths_.assign(conditions_.size(), Truth::unknown);
}

void Program::add_source(const BufferPtr& buffer, const Tensor& tensor) {
  values_.emplace(buffer.get(), tensor);
  sources_.push_back(buffer);
}

void Program::finish_lazily() {
  steps_ = fuse(std::move(steps_), kept_);
  run_lazily(steps_, values_);
}

std::optional<Tensor> Program::value_of(const Buffer* buffer) const {
  const auto found = values_.find(buffer);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

void Program::place_buffers() {
  struct Life {
    BufferPtr buffer;
    size_t last = 0;
    uint64_t offset = 0;
  };
  std::unordered_map<const Buffer*, Life> lives;
  std::vector<std::vector<Life*>> born(steps_.size());
  std::vector<std::vector<Life*>> ends(steps_.size() + 1);
  const auto use = [&](const BufferPtr& buffer, size_t step) {
    if (!buffer || buffer->has_memory()) return;
    const auto [it, is_new] = lives.try_emplace(buffer.get());
    it->second.last = step;
    if (!is_new) return;
    it->second.buffer = buffer;
    born[step].push_back(&it->second);
  };
  for (size_t i = 0; i < steps_.size(); ++i) {
    use(steps_[i].flag, i);
    for (const Operand& read : steps_[i].kernel->reads()) use(read.buffer, i);
    for (const Operand& written : steps_[i].kernel->writes()) use(written.buffer, i);
  }
  for (const BufferPtr& buffer : kept_) {
    if (const auto found = lives.find(buffer.get()); found != lives.end()) found->second.last = steps_.size();
  }
  for (auto& [buffer, life] : lives) ends[life.last].push_back(&life);
  Arena arena;
  for (size_t i = 0; i < steps_.size(); ++i) {
    for (Life* life : born[i]) life->offset = arena.take(life->buffer->size());
    for (Life* life : ends[i]) arena.give_back(life->offset, life->buffer->size());
  }
  size_.arena_bytes = arena.size();
  const auto memory = allocate_arena(arena.size());
  for (auto& [buffer, life] : lives) {
    life.buffer->place(memory, life.offset);
    if (life.last < steps_.size()) life.buffer->make_transient();
    placed_.push_back(life.buffer);
  }
}

bool Program::holds(int condition) {
  if (condition == no_condition) return true;
  Truth& truth = truths_[condition];
  if (truth == Truth::unknown) {
    truth =
        holds(conditions_[condition].outer) && is_true(conditions_[condition].flag) ? Truth::yes : Truth::no;
  }
  return truth == Truth::yes;
}

void Program::run() {
  std::fill(truths_.begin(), truths_.end(), Truth::unknown);
  for (RecordedStep& step : steps_) {
    if (holds(step.condition)) step.kernel->run();
  }
}

}  // namespace cbk::compute
