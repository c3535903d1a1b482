// Shared code of statistics: the division of a tensor, and statistics from moments.
#pragma once

#include <cstdint>

#include "host/tensor/kernels/moments.hpp"
#include "host/tensor/statistics.hpp"

namespace cbk {

inline constexpr int64_t read_size = 1 << 16;  // elements that are read at once
inline constexpr int64_t part_size = 1 << 18;  // of a task; results are joined in the order of the parts
inline constexpr int64_t few_elements =
    1 << 12;  // each is kept, where a counter for each possible value would be larger

/// The least positive number of a floating dtype that is not subnormal.
double least_normal(DType dtype);

Statistics as_statistics(const Moments& moments);

}  // namespace cbk
