// Products of small matrices, for which a call of a library costs more than the product.
#pragma once

#include "host/compute/gemm.hpp"

namespace cbk::compute {

/// out = scale·(a · b), or out += scale·(a · b). On one thread.
template <typename T>
void small_gemm(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& out, int64_t rows,
                int64_t columns, int64_t depth, T scale, bool adds);

}  // namespace cbk::compute
