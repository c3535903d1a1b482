// Sums over dense float32 numbers: loops for the vector unit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cbk {

struct FloatSums {
  int64_t count = 0;   // left to the caller
  double sum = 0;      // of x − shift
  double squares = 0;  // of (x − shift)²; not finite where a number is not
  float least = 0;     // infinity and −infinity without numbers
  float most = 0;
  float smallest = 0;  // the least |x|
};

/// With counters, also adds 1 to counters[upper 16 bits] of each number other than 0.
FloatSums sums_of_floats(const float* x, size_t count, double shift, uint32_t* counters);

}  // namespace cbk
