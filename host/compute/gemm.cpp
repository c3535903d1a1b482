#include "host/compute/gemm.hpp"

#include <malloc.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>

#include "host/base/error.hpp"
#include "host/base/parallel.hpp"
#include "host/base/shared_library.hpp"
#include "host/compute/small_gemm.hpp"

namespace cbk::compute {
namespace {

constexpr int64_t small =
    16384;  // products of fewer multiplications are done here: a library call costs more

/// oneDNN, and OpenMP, which it uses for threads.
struct MatrixLibrary {
  decltype(&dnnl_sgemm) sgemm;
  void (*set_threads)(int);  // omp_set_num_threads
};

const MatrixLibrary& matrix_library() {
  static const MatrixLibrary library = [] {
    const char* purpose = "a matrix product";
    const SharedLibrary dnnl("libdnnl.so.2", purpose);
    const SharedLibrary openmp("libgomp.so.1", purpose);
    return MatrixLibrary{dnnl.function<decltype(dnnl_sgemm)>("dnnl_sgemm"),
                         openmp.function<void(int)>("omp_set_num_threads")};
  }();
  return library;
}

/// Each product runs on one of cbk's own threads.
void use_one_thread() {
  thread_local const bool done = [] {
    matrix_library().set_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

/// oneDNN allocates memory for packing in each product. Unless the heap keeps that memory, its pages are
/// returned and cleared thousands of times in a step, a tenth of the step's time.
void keep_heap() {
  static const bool done = [] {
    constexpr int kept = 128 << 20;
    return mallopt(M_MMAP_THRESHOLD, kept) == 1 && mallopt(M_TRIM_THRESHOLD, kept) == 1;
  }();
  static_cast<void>(done);
}

}  // namespace

template <>
void gemm<float>(const Matrix<const float>& a, const Matrix<const float>& b, const Matrix<float>& out,
                 int64_t rows, int64_t columns, int64_t depth, float scale, bool adds) {
  if (rows * columns * depth <= small) return small_gemm(a, b, out, rows, columns, depth, scale, adds);
  use_one_thread();
  keep_heap();
  const auto status = matrix_library().sgemm(a.is_transposed ? 'T' : 'N', b.is_transposed ? 'T' : 'N', rows,
                                             columns, depth, scale, a.data, std::max<int64_t>(1, a.stride),
                                             b.data, std::max<int64_t>(1, b.stride), adds ? 1.0F : 0.0F,
                                             out.data, std::max<int64_t>(1, out.stride));
  if (status != dnnl_success)
    fail(Errc::internal, "matrix product ({}, {}) x ({}, {}) failed: status {}", rows, depth, depth, columns,
         static_cast<int>(status));
}

template <>
void gemm<double>(const Matrix<const double>& a, const Matrix<const double>& b, const Matrix<double>& out,
                  int64_t rows, int64_t columns, int64_t depth, double scale, bool adds) {
  small_gemm(a, b, out, rows, columns, depth, scale, adds);
}

/// The number of parts of a product, by its size alone. Each part packs its matrices again, so few and large
/// parts are best.
static int64_t parts_of(int64_t rows, int64_t columns, int64_t depth) {
  constexpr int64_t worth_two = 1 << 25, most = 1 << 29;  // multiplications
  const int64_t work = rows * columns * depth;
  if (work < worth_two) return 1;
  return ((work + most - 1) / most + 1) / 2 * 2;
}

template <typename T>
void parallel_gemm(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& out, int64_t rows,
                   int64_t columns, int64_t depth) {
  const bool by_rows = rows >= columns;
  const int64_t extent = by_rows ? rows : columns;
  const int64_t parts = std::min(extent, parts_of(rows, columns, depth));
  if (parts == 0) return;
  parallel_for(parts, [&](int64_t i) {
    const int64_t begin = extent * i / parts, count = extent * (i + 1) / parts - begin;
    if (by_rows) return gemm<T>(a.block(begin, 0), b, out.block(begin, 0), count, columns, depth);
    gemm<T>(a, b.block(0, begin), out.block(0, begin), rows, count, depth);
  });
}

template void parallel_gemm<float>(const Matrix<const float>&, const Matrix<const float>&,
                                   const Matrix<float>&, int64_t, int64_t, int64_t);
template void parallel_gemm<double>(const Matrix<const double>&, const Matrix<const double>&,
                                    const Matrix<double>&, int64_t, int64_t, int64_t);

}  // namespace cbk::compute
