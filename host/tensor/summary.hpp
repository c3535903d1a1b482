// One pass over all elements of a tensor, in blocks: statistics and digests. Ctrl-C is honoured between
// blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "host/tensor/tensor.hpp"

namespace cbk {

struct Statistics {
  double min = 0;  // of the elements that are not NaN; NaN when there are none
  double max = 0;
  double mean = 0;  // of the finite elements
  double std = 0;   // of the finite elements, as PyTorch's (divided by n - 1)
  int64_t nan = 0;
  int64_t inf = 0;
  int64_t zeros = 0;
  int64_t numel = 0;
};

/// Computed in float64. A complex tensor is a `dtype` error.
Statistics statistics(const Tensor& tensor);

/// SHA-256 of the little-endian elements in C order, in lower-case hex.
std::string sha256(const Tensor& tensor);

/// Calls `visit` with the elements in C order, block after block (whole elements).
void for_each_block(const Tensor& tensor, const std::function<void(ByteView block)>& visit);

std::string to_hex(ByteView bytes);

}  // namespace cbk
