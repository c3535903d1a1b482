// Sums over dense elements: what their size is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/tensor/dtype.hpp"

namespace cbk {

/// All fields are about the finite elements.
struct RowSums {
  int64_t count = 0;
  double sum = 0;
  double squares = 0;  // above 0 if an element is not 0
  double largest = 0;  // |x|

  RowSums& operator+=(const RowSums& other);
};

/// Of floating elements; up to 1 in 100,000 wrong, as those of up to 32 bits are summed in float32 by the
/// vector unit. float32.
RowSums sums_of_row(DType dtype, const std::byte* elements, int64_t count);

}  // namespace cbk
