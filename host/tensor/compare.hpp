// The differences between two tensors of one shape, element by element, in one pass over blocks, on several
// threads. The results have the same bits for any number of threads. Ctrl-C is honoured between blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "host/tensor/number.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk {

struct Tolerance {
  double relative = 0;
  double absolute = 0;
};

/// An element with different values in two tensors.
struct ElementDifference {
  int64_t position = 0;  // in C order
  double distance = 0;   // |a - b|
};

/// Two elements agree when |a - b| <= absolute + relative · |b|, when both are NaN, or when they are the same
/// infinity.
struct Difference {
  int64_t numel = 0;
  int64_t different = 0;  // elements that do not agree
  int64_t first = -1;     // the first of them, in C order
  Number max_absolute =
      0.0;  // largest |a - b|, whole of whole numbers; NaN against a number counts as infinite
  double max_relative = 0;  // largest |a - b| / max(|a|, |b|)
  int64_t nan_a = 0;        // elements that are NaN in a only
  int64_t nan_b = 0;
  int64_t infinite = 0;    // elements of which one is infinite, and the other is another number
  bool same_bits = false;  // one dtype and the same bytes
  /// The largest |a - b| first, of equal ones the first; also of elements that agree.
  std::vector<ElementDifference> largest;
  /// Over the pairs of finite elements, if some bytes differ. |a - b| / |b| of the vectors; infinite where
  /// b is 0.
  std::optional<double> relative_norm;
  std::optional<double> cosine;  // missing where a or b is 0
};

/// The dtypes may differ: elements are then compared as float64 (integers exactly, also against floats).
/// Complex elements agree by the distance in the plane. `most` of the largest differences are kept. Errors:
/// `shape`; `dtype` for a complex tensor against one that is not.
Difference compare(const Tensor& a, const Tensor& b, const Tolerance& tolerance = {}, size_t most = 0);

}  // namespace cbk
