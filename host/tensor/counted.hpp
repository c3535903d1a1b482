// Statistics of floats of up to 16 bits: they follow from the counts of all bit patterns.
#pragma once

#include "host/tensor/statistics.hpp"

namespace cbk {

/// With a bin for each value.
Statistics counted_statistics(const Tensor& tensor);

}  // namespace cbk
