// One pass over all elements of a tensor, in blocks: statistics and digests. Ctrl-C is honoured between
// blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "host/tensor/number.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk {

/// NaN and infinite elements are counted and left out of the rest, which is missing where nothing is left.
struct Statistics {
  std::optional<Number> min;
  std::optional<Number> max;
  std::optional<double> mean;
  std::optional<double> std;  // of the population (divided by n), as NumPy's
  int64_t nan = 0;
  int64_t inf = 0;
  int64_t zeros = 0;
  int64_t numel = 0;
};

/// Sums of integers are exact; real ones are computed in long double, block by block, which are joined by
/// Chan's formula. A complex tensor is a `dtype` error.
Statistics statistics(const Tensor& tensor);

/// SHA-256 of the little-endian elements in C order, in lower-case hex.
std::string sha256(const Tensor& tensor);

/// Calls `visit` with the elements in C order, block after block (whole elements).
void for_each_block(const Tensor& tensor, const std::function<void(ByteView block)>& visit);

std::string to_hex(ByteView bytes);

}  // namespace cbk
