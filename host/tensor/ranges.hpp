// The distribution of numbers that were counted by ranges of float32 (kernels/moments.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "host/tensor/distribution.hpp"
#include "host/tensor/kernels/moments.hpp"

namespace cbk {

/// `counters`: in ascending order (counter_begin), with zeros; `moments` are those of the counted numbers.
Distribution distribution_of_ranges(const std::vector<int64_t>& counters, const Moments& moments);

}  // namespace cbk
