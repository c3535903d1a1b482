// A recorded step: kernels in order, joined if they fit together, over memory that is planned once. A replay
// allocates nothing.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "host/compute/fuse.hpp"
#include "host/compute/kernel.hpp"
#include "host/compute/lazy.hpp"

namespace cbk::compute {

class Program {
 public:
  /// The effect of reading a value before the end: an error; or the recorded part runs first; or the value is
  /// read in place, because lazy programs write no memory.
  enum class Reading : uint8_t { refused, runs_early, in_place };
  explicit Program(Reading reading = Reading::refused);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  void record(KernelPtr kernel);

  /// The part recorded from here to `end_condition` runs only if the one element of `flag` is not zero. May
  /// be nested. Values that it writes and others read must have been set before.
  void begin_condition(const Operand& flag);
  void end_condition();

  /// The values of this buffer are read after a run.
  void keep(const BufferPtr& buffer);

  /// Unique among all programs: 1, 2, ….
  [[nodiscard]] uint64_t number() const { return number_; }
  [[nodiscard]] Reading reading() const {
    return open_condition_ == no_condition ? reading_ : Reading::refused;
  }
  /// Runs the recorded kernels and discards them. Every buffer that they wrote has its own memory from now
  /// on.
  void run_early();

  /// Joins kernels and places buffers. Nothing may be recorded after it.
  void finish();
  void run();

  /// A lazy program reads tensors of a checkpoint that have no memory here. It is not run: it returns the
  /// tensors that it would write, lazily.
  void add_source(const BufferPtr& buffer, const Tensor& tensor);
  void finish_lazily();
  /// After `finish_lazily`: the tensor of a buffer without memory.
  [[nodiscard]] std::optional<Tensor> value_of(const Buffer* buffer) const;

  struct Size {
    size_t recorded = 0;
    size_t kernels = 0;        // after joining
    uint64_t arena_bytes = 0;  // for values that live only within a run
  };
  [[nodiscard]] Size size() const { return size_; }

 private:
  struct Condition {
    Operand flag;
    int outer = no_condition;  // the condition around it
  };
  enum class Truth : uint8_t { unknown, no, yes };
  void place_buffers();
  bool holds(int condition);

  Reading reading_;
  uint64_t number_;
  LazyValues values_;
  std::vector<BufferPtr> sources_;
  std::vector<RecordedStep> steps_;
  std::vector<Condition> conditions_;
  std::vector<Truth> truths_;
  int open_condition_ = no_condition;
  std::vector<BufferPtr> kept_, placed_;
  Size size_;
};

}  // namespace cbk::compute
