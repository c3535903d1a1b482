// float32 as bfloat16, with the widest vectors that the machine has: the last step of most computations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/tensor/kernels/losses.hpp"

namespace cbk {

/// Rounds to the nearest, ties to even; NaN becomes one quiet NaN. Counts as `cast_elements` does.
Losses to_bfloat16(const std::byte* source, std::byte* out, int64_t count);

}  // namespace cbk
