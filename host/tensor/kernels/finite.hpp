// Looks for NaN and infinity among dense elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/tensor/dtype.hpp"

namespace cbk {

/// The first element that is NaN or infinite, or in one of its two parts; -1 if there is none, as for
/// integers.
int64_t first_not_finite(DType dtype, const std::byte* elements, int64_t count);

}  // namespace cbk
