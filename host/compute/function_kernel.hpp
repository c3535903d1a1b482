// A kernel from a function, for operators that are not element-wise.
#pragma once

#include "host/compute/context.hpp"
#include "host/compute/kernel.hpp"

namespace cbk::compute {

template <typename Body>
class FunctionKernel final : public Kernel {
 public:
  FunctionKernel(std::vector<Operand> reads, std::vector<Operand> writes, Body body)
      : Kernel(std::move(reads), std::move(writes)), body_(std::move(body)) {}
  void run() override { body_(reads_, writes_); }

 private:
  Body body_;
};

/// Runs or records `body(reads, writes)`. It must keep nothing from one run to the next except scratch
/// memory.
template <typename Body>
void execute(std::vector<Operand> reads, std::vector<Operand> writes, Body body) {
  execute(std::make_unique<FunctionKernel<Body>>(std::move(reads), std::move(writes), std::move(body)));
}

}  // namespace cbk::compute
