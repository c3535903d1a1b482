// Compiled once for each instruction set (Highway's foreach_target).
#include "host/compute/small_gemm.hpp"

#include <algorithm>
#include <vector>

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/compute/small_gemm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cbk::compute::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// b as rows of full vectors, with zeros after the last column.
template <typename T>
const T* packed(const Matrix<const T>& b, int64_t depth, int64_t columns, int64_t width) {
  thread_local std::vector<T> dense;
  dense.assign(static_cast<size_t>(depth * width), T{0});
  for (int64_t k = 0; k < depth; ++k) {
    for (int64_t j = 0; j < columns; ++j) {
      dense[k * width + j] = b.is_transposed ? b.data[j * b.stride + k] : b.data[k * b.stride + j];
    }
  }
  return dense.data();
}

/// `count` rows of the result, two vectors wide, kept in registers over the whole depth.
template <int count, typename T>
HWY_INLINE void tile(const T* a, int64_t down, int64_t across, const T* b, int64_t width, int64_t depth,
                     T* result) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  using V = hn::Vec<decltype(d)>;
  V left[count], right[count];
  for (int i = 0; i < count; ++i) left[i] = right[i] = hn::Zero(d);
  for (int64_t k = 0; k < depth; ++k) {
    const V first = hn::LoadU(d, b + k * width), second = hn::LoadU(d, b + k * width + lanes);
    for (int i = 0; i < count; ++i) {
      const V factor = hn::Set(d, a[i * down + k * across]);
      left[i] = hn::MulAdd(factor, first, left[i]);
      right[i] = hn::MulAdd(factor, second, right[i]);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    hn::StoreU(left[i], d, result + i * 2 * lanes);
    hn::StoreU(right[i], d, result + i * 2 * lanes + lanes);
  }
}

template <typename T>
void multiply(const Matrix<const T>& a, const Matrix<const T>& b, const Matrix<T>& out, int64_t rows,
              int64_t columns, int64_t depth, T scale, bool adds) {
  const hn::ScalableTag<T> d;
  const auto step = static_cast<int64_t>(hn::Lanes(d)) * 2;
  const int64_t width = (columns + step - 1) / step * step;
  const T* dense = packed(b, depth, columns, width);
  const int64_t down = a.is_transposed ? 1 : a.stride, across = a.is_transposed ? a.stride : 1;
  constexpr int most = 6;
  HWY_ALIGN T result[most * 2 * hn::MaxLanes(d)];
  for (int64_t i = 0; i < rows;) {
    const int64_t count = rows - i >= most ? most : 1;
    for (int64_t j = 0; j < columns; j += step) {
      const T* from = a.data + i * down;
      if (count == most) {
        tile<most>(from, down, across, dense + j, width, depth, result);
      } else {
        tile<1>(from, down, across, dense + j, width, depth, result);
      }
      const int64_t used = std::min(step, columns - j);
      for (int64_t r = 0; r < count; ++r) {
        T* to = out.data + (i + r) * out.stride + j;
        const T* row = result + r * step;
        if (adds) {
          for (int64_t c = 0; c < used; ++c) to[c] += scale * row[c];
        } else {
          for (int64_t c = 0; c < used; ++c) to[c] = scale * row[c];
        }
      }
    }
    i += count;
  }
}

void multiply_floats(const Matrix<const float>& a, const Matrix<const float>& b, const Matrix<float>& out,
                     int64_t rows, int64_t columns, int64_t depth, float scale, bool adds) {
  multiply(a, b, out, rows, columns, depth, scale, adds);
}

void multiply_doubles(const Matrix<const double>& a, const Matrix<const double>& b, const Matrix<double>& out,
                      int64_t rows, int64_t columns, int64_t depth, double scale, bool adds) {
  multiply(a, b, out, rows, columns, depth, scale, adds);
}

}  // namespace cbk::compute::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cbk::compute {

HWY_EXPORT(multiply_floats);
HWY_EXPORT(multiply_doubles);

template <>
void small_gemm<float>(const Matrix<const float>& a, const Matrix<const float>& b, const Matrix<float>& out,
                       int64_t rows, int64_t columns, int64_t depth, float scale, bool adds) {
  HWY_DYNAMIC_DISPATCH(multiply_floats)(a, b, out, rows, columns, depth, scale, adds);
}

template <>
void small_gemm<double>(const Matrix<const double>& a, const Matrix<const double>& b,
                        const Matrix<double>& out, int64_t rows, int64_t columns, int64_t depth, double scale,
                        bool adds) {
  HWY_DYNAMIC_DISPATCH(multiply_doubles)(a, b, out, rows, columns, depth, scale, adds);
}

}  // namespace cbk::compute
#endif
