// Statistics of integers and bools: all sums are exact.
#pragma once

#include "host/tensor/statistics.hpp"

namespace cbk {

Statistics whole_statistics(const Tensor& tensor);

}  // namespace cbk
