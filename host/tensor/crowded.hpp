// Counts ranges with many numbers again in smaller parts: similar numbers, such as the weights of a norm
// near 1, all fall into a few ranges of float32.
#pragma once

#include "host/tensor/distribution.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk {

/// The distribution of the tensor's numbers with each range that holds more than 1/64 of them in 1,024 parts
/// of one width. Reads the tensor again if there is such a range, on several threads. No complex tensors.
Distribution split_crowded(const Tensor& tensor, Distribution distribution);

}  // namespace cbk
