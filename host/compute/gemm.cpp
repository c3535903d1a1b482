#include "host/compute/gemm.hpp"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>

#include "host/base/error.hpp"
#include "host/compute/parallel.hpp"
#include "host/compute/small_gemm.hpp"

namespace cbk::compute {
namespace {

constexpr int64_t small =
    16384;  // products of fewer multiplications are done here: a library call costs more
constexpr int64_t tile_rows = 512, tile_columns = 1024;

/// oneDNN parallelises with OpenMP; here a product belongs to one of our own threads.
void use_one_thread() {
  thread_local const bool done = [] {
    omp_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

template <>
void gemm<float>(const Matrix<const float>& a, const Matrix<const float>& b, const Matrix<float>& out,
                 int64_t rows, int64_t columns, int64_t depth, float scale, bool adds) {
  if (rows * columns * depth <= small) return small_gemm(a, b, out, rows, columns, depth, scale, adds);
  use_one_thread();
  const auto status =
      dnnl_sgemm(a.is_transposed ? 'T' : 'N', b.is_transposed ? 'T' : 'N', rows, columns, depth, scale,
                 a.data, std::max<int64_t>(1, a.stride), b.data, std::max<int64_t>(1, b.stride),
                 adds ? 1.0F : 0.0F, out.data, std::max<int64_t>(1, out.stride));
  if (status != dnnl_success)
    fail(Errc::internal, "matrix product ({}, {}) x ({}, {}) failed: status {}", rows, depth, depth, columns,
         static_cast<int>(status));
}

template <>
void gemm<double>(const Matrix<const double>& a, const Matrix<const double>& b, const Matrix<double>& out,
                  int64_t rows, int64_t columns, int64_t depth, double scale, bool adds) {
  small_gemm(a, b, out, rows, columns, depth, scale, adds);
}

template <typename T>
void parallel_gemm(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& out, int64_t rows,
                   int64_t columns, int64_t depth) {
  const int64_t down = (rows + tile_rows - 1) / tile_rows;
  const int64_t across = (columns + tile_columns - 1) / tile_columns;
  parallel_for(down * across, [&](int64_t tile) {
    const int64_t row = tile / across * tile_rows, column = tile % across * tile_columns;
    gemm<T>(a.block(row, 0), b.block(0, column), out.block(row, column), std::min(tile_rows, rows - row),
            std::min(tile_columns, columns - column), depth);
  });
}

template void parallel_gemm<float>(const Matrix<const float>&, const Matrix<const float>&,
                                   const Matrix<float>&, int64_t, int64_t, int64_t);
template void parallel_gemm<double>(const Matrix<const double>&, const Matrix<const double>&,
                                    const Matrix<double>&, int64_t, int64_t, int64_t);

}  // namespace cbk::compute
