// Recorded formulas over lazy tensors: what a program would write, as lazy tensors again, so that checkpoints
// larger than memory are streamed through the same formulas.
#pragma once

#include <unordered_map>
#include <vector>

#include "host/compute/elementwise.hpp"
#include "host/compute/fuse.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk::compute {

/// Buffers without memory, by the tensor whose values they have.
using LazyValues = std::unordered_map<const Buffer*, Tensor>;

/// The result of a chain whose inputs are lazy or in memory. Inputs of one element are read now. Elements
/// have the same bits as those of the chain over memory.
Tensor lazy_output(const ElementChain& chain, size_t output, const LazyValues& values);

/// Goes through recorded steps: what has one element runs, the rest becomes lazy values.
/// Afterwards `values` has that of every buffer without memory. Errors: `refused` for kernels that need whole
/// tensors.
void run_lazily(std::vector<RecordedStep>& steps, LazyValues& values);

}  // namespace cbk::compute
