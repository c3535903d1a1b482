// A recorded step: kernels in order, joined where they fit together, over memory that is planned once. A
// replay allocates nothing.
#pragma once

#include <memory>
#include <vector>

#include "host/compute/fuse.hpp"
#include "host/compute/kernel.hpp"

namespace cbk::compute {

class Program {
 public:
  /// `can_run_early`: reading a value runs what is recorded so far; otherwise reading is an error.
  explicit Program(bool can_run_early = false) : can_run_early_(can_run_early) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();

  void record(KernelPtr kernel);

  /// What is recorded from here to `end_condition` runs only if the one element of `flag` is not zero. May be
  /// nested. What it writes and others read must have had a value before.
  void begin_condition(const Operand& flag);
  void end_condition();

  /// The values of this buffer are read after a run.
  void keep(const BufferPtr& buffer);

  [[nodiscard]] bool can_run_early() const { return can_run_early_ && open_condition_ == no_condition; }
  /// Runs what is recorded and forgets it; every buffer that it wrote has memory of its own from now on.
  void run_early();

  /// Joins kernels and places buffers. Nothing is recorded after it.
  void finish();
  void run();

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

  bool can_run_early_;
  std::vector<RecordedStep> steps_;
  std::vector<Condition> conditions_;
  std::vector<Truth> truths_;
  int open_condition_ = no_condition;
  std::vector<BufferPtr> kept_, placed_;
  Size size_;
};

}  // namespace cbk::compute
