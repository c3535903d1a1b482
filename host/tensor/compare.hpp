// How two tensors of one shape differ, element by element, in one pass over blocks.
#pragma once

#include <cstdint>

#include "host/tensor/number.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk {

struct Tolerance {
  double relative = 0;
  double absolute = 0;
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
  bool same_bits = false;   // one dtype and the same bytes
};

/// The dtypes may differ: elements are then compared as float64 (whole numbers exactly, also with real ones).
/// Complex elements agree by the distance in the plane. Errors: `shape`; `dtype` for a complex tensor against
/// one that is not.
Difference compare(const Tensor& a, const Tensor& b, const Tolerance& tolerance = {});

}  // namespace cbk
