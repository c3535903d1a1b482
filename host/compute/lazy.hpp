// Recorded formulas over lazy tensors: the tensors that a program would write become lazy tensors again, so
// that checkpoints larger than memory are streamed through the same formulas.
#pragma once

#include <unordered_map>
#include <vector>

#include "host/compute/elementwise.hpp"
#include "host/compute/fuse.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk::compute {

/// Buffers without memory, each with the tensor that has its values.
using LazyValues = std::unordered_map<const Buffer*, Tensor>;

/// The result of a chain whose inputs are lazy or in memory. Inputs with one element are read immediately.
/// Elements have the same bits as in the chain over memory.
Tensor lazy_output(const ElementChain& chain, size_t output, const LazyValues& values);

/// Goes through recorded steps: steps with one element run, the others become lazy values.
/// Afterwards `values` has the value of every buffer without memory. Errors: `refused` for kernels that need
/// whole tensors.
void run_lazily(std::vector<RecordedStep>& steps, LazyValues& values);

}  // namespace cbk::compute
