#include "host/compute/row_math.hpp"

#include <algorithm>

#include "host/base/clones.hpp"

namespace cbk::compute {
namespace {

constexpr int lanes = 32;
constexpr int64_t floats_together = 1024;  // of float sums, before they go to a double

}  // namespace

CBK_CLONES double row_sum(const float* x, int64_t count) {
  double total = 0;
  int64_t i = 0;
  while (i + lanes <= count) {
    float sums[lanes] = {};
    const int64_t end = std::min(count - lanes, i + floats_together - lanes);
    for (; i <= end; i += lanes) {
      for (int j = 0; j < lanes; ++j) sums[j] += x[i + j];
    }
    for (const float sum : sums) total += static_cast<double>(sum);
  }
  for (; i < count; ++i) total += static_cast<double>(x[i]);
  return total;
}

CBK_CLONES double row_sum(const double* x, int64_t count) {
  double sums[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (int j = 0; j < lanes; ++j) sums[j] += x[i + j];
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  for (; i < count; ++i) total += x[i];
  return total;
}

CBK_CLONES double row_dot(const float* x, const float* y, int64_t count) {
  double total = 0;
  int64_t i = 0;
  while (i + lanes <= count) {
    float sums[lanes] = {};
    const int64_t end = std::min(count - lanes, i + floats_together - lanes);
    for (; i <= end; i += lanes) {
      for (int j = 0; j < lanes; ++j) sums[j] += x[i + j] * y[i + j];
    }
    for (const float sum : sums) total += static_cast<double>(sum);
  }
  for (; i < count; ++i) total += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return total;
}

CBK_CLONES double row_dot(const double* x, const double* y, int64_t count) {
  double sums[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (int j = 0; j < lanes; ++j) sums[j] += x[i + j] * y[i + j];
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  for (; i < count; ++i) total += x[i] * y[i];
  return total;
}

namespace {

template <typename T>
inline T largest(const T* x, int64_t count) {
  T best[lanes];
  std::fill_n(best, lanes, x[0]);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    // NaN is kept: comparisons with it are false.
    for (int j = 0; j < lanes; ++j) best[j] = best[j] >= x[i + j] || best[j] != best[j] ? best[j] : x[i + j];
  }
  T out = x[0];
  for (const T one : best) out = out >= one || out != out ? out : one;
  for (; i < count; ++i) out = out >= x[i] || out != out ? out : x[i];
  return out;
}

template <typename T>
void scale_row(T* y, const T* weight, const T* bias, T scale, int64_t count) {
  if (bias == nullptr) {
    for (int64_t i = 0; i < count; ++i) y[i] = y[i] * scale * weight[i];
  } else {
    for (int64_t i = 0; i < count; ++i) y[i] = y[i] * scale * weight[i] + bias[i];
  }
}

template <typename T>
void collect_products(double* total, const T* g, const T* x, T shift, T scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) total[i] += static_cast<double>(g[i] * ((x[i] - shift) * scale));
}

}  // namespace

CBK_CLONES float row_max(const float* x, int64_t count) {
  return largest(x, count);
}
CBK_CLONES double row_max(const double* x, int64_t count) {
  return largest(x, count);
}

CBK_CLONES void row_add(float* y, const float* x, float a, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] += a * x[i];
}

CBK_CLONES void row_add(double* y, const double* x, double a, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] += a * x[i];
}

CBK_CLONES void row_collect(double* total, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) total[i] += static_cast<double>(x[i]);
}

CBK_CLONES void row_collect(double* total, const double* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) total[i] += x[i];
}

CBK_CLONES void row_shift(float* y, const float* x, float a, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] - a;
}
CBK_CLONES void row_shift(double* y, const double* x, double a, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] - a;
}

CBK_CLONES void row_scale(float* y, const float* weight, const float* bias, float scale, int64_t count) {
  scale_row(y, weight, bias, scale, count);
}
CBK_CLONES void row_scale(double* y, const double* weight, const double* bias, double scale, int64_t count) {
  scale_row(y, weight, bias, scale, count);
}

CBK_CLONES void row_slope(float* y, const float* weight, const float* g, float a, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = weight[i] * (g[i] - a);
}
CBK_CLONES void row_slope(double* y, const double* weight, const double* g, double a, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = weight[i] * (g[i] - a);
}

CBK_CLONES void row_collect(double* total, const float* g, const float* x, float shift, float scale,
                            int64_t count) {
  collect_products(total, g, x, shift, scale, count);
}
CBK_CLONES void row_collect(double* total, const double* g, const double* x, double shift, double scale,
                            int64_t count) {
  collect_products(total, g, x, shift, scale, count);
}

}  // namespace cbk::compute
