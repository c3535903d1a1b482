// The state of a thread's operators: whether gradients are recorded, whether steps are, and the next random
// number. One per thread that runs Lua.
#pragma once

#include <cstdint>

#include "host/compute/draws.hpp"
#include "host/compute/kernel.hpp"
#include "host/compute/variable.hpp"

namespace cbk::compute {

class Program;

struct Context {
  bool records_gradients = true;
  Program* program = nullptr;    // that is being recorded, if any
  Device device = Device::cpu;   // of new variables
  bool may_read_device = false;  // a closure runs on a checkpoint step
  uint64_t seed = 0;
  uint64_t drawn = 0;            // random tensors so far: each has a sequence of its own
  std::shared_ptr<Draws> draws;  // what is drawn now is drawn again later, or is the second time
  /// Of each rank in the global batch; sum 1. Empty: nothing is reduced over the team
  /// (team_sum.cpp).
  std::vector<double> team_shares;
};

Context& context();

/// Sets a field of the context until the end of the scope.
template <typename T>
class Scoped {
 public:
  Scoped(T& field, T value) : field_(field), before_(field) { field = value; }
  Scoped(const Scoped&) = delete;
  Scoped& operator=(const Scoped&) = delete;
  ~Scoped() { field_ = before_; }

 private:
  T& field_;
  T before_;
};

/// Runs a kernel now, or adds it to the program that is being recorded. Buffers that it writes get a new
/// version.
void execute(KernelPtr kernel);

}  // namespace cbk::compute
