// Statistics of floats of up to 16 bits: how often each pattern of bits occurs says everything.
#pragma once

#include "host/tensor/statistics.hpp"

namespace cbk {

/// With a bin for each value.
Statistics counted_statistics(const Tensor& tensor);

}  // namespace cbk
