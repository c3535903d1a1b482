// Statistics of a tensor's elements, in one pass over blocks, on several threads; in a second pass if many
// numbers are similar. The results have the same bits for any number of threads. Ctrl-C is honoured between
// blocks.
#pragma once

#include <cstdint>
#include <optional>

#include "host/tensor/distribution.hpp"
#include "host/tensor/number.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk {

/// NaN and infinite elements are counted and left out of the rest, which is missing if nothing is left.
struct Statistics {
  std::optional<Number> min;
  std::optional<Number> max;
  std::optional<double> mean;
  std::optional<double> std;   // of the population (divided by n), as NumPy's
  std::optional<double> norm;  // the root of the sum of squares
  int64_t nan = 0;
  int64_t inf = 0;
  int64_t zeros = 0;
  int64_t subnormal = 0;  // other than 0, but below the dtype's least normal number
  int64_t numel = 0;
  /// Bins of floats are 1/128 of a factor of two wide, and those with more than 1/64 of the numbers 1/1,024
  /// of that; those of up to 4,096 elements, of dtypes of up to 16 bits, and of up to 65,536 different
  /// integers are single values. Numbers of float64 outside of float32's range share a bin at each end.
  Distribution distribution;
};

/// Sums of integers are exact; those of floats are computed in double or wider. A complex tensor is a `dtype`
/// error. `with_distribution`: without it floats take two thirds of the time.
Statistics statistics(const Tensor& tensor, bool with_distribution = true);

}  // namespace cbk
