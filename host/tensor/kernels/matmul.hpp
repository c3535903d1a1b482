// Dense matrix products of small depth (low-rank updates): out += a · b.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/tensor/dtype.hpp"

namespace cbk {

/// a (rows, depth), b (depth, columns), out (rows, columns): dense, all float32 or all float64.
void accumulate_matmul(DType dtype, const std::byte* a, const std::byte* b, std::byte* out, int64_t rows,
                       int64_t depth, int64_t columns);

}  // namespace cbk
