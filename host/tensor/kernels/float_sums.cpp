// Compiled once for each instruction set (Highway's foreach_target).
#include "host/tensor/kernels/float_sums.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/tensor/kernels/float_sums.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cbk::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using D = hn::ScalableTag<double>;
using H = hn::Rebind<float, D>;  // as many floats as a vector of doubles has

constexpr size_t step = 32;  // numbers of a round: one store for each keeps the unit of stores as busy as the
                             // others, so that sums cost nothing beside the counters

/// Joins lanes in order.
template <typename Tag, typename V, typename Join>
hn::TFromD<Tag> joined(Tag tag, V vector, Join join) {
  HWY_ALIGN hn::TFromD<Tag> lanes[hn::MaxLanes(Tag{})];
  hn::Store(vector, tag, lanes);
  hn::TFromD<Tag> out = lanes[0];
  for (size_t i = 1; i < hn::Lanes(tag); ++i) out = join(out, lanes[i]);
  return out;
}

HWY_INLINE void count(const float* x, size_t size, uint32_t* counters) {
  const auto* halves = reinterpret_cast<const std::byte*>(x) + 2;
#pragma GCC unroll 4
  for (size_t i = 0; i < size; ++i) {
    uint16_t upper = 0;
    std::memcpy(&upper, halves + 4 * i, sizeof upper);
    ++counters[upper];
  }
}

/// Additions to the same counter wait for each other, and only zeros are frequent.
HWY_NOINLINE void count_others(const float* x, size_t size, uint32_t* counters) {
  HWY_ALIGN float others[step + hn::MaxLanes(F{})];
  size_t found = 0;
  for (size_t i = 0; i < size; ++i) {
    others[found] = x[i];
    found += x[i] != 0 ? 1 : 0;
  }
  count(others, found, counters);
}

template <bool with_counters>
FloatSums sums(const float* x, size_t size, double shift, uint32_t* counters) {
  const F f;
  const D d;
  const H h;
  constexpr size_t parts = 2;  // sums side by side, as an addition takes a while
  hn::Vec<D> sum[parts], squares[parts];
  for (size_t p = 0; p < parts; ++p) sum[p] = squares[p] = hn::Zero(d);
  hn::Vec<F> least = hn::Set(f, std::numeric_limits<float>::infinity()), most = hn::Neg(least),
             smallest = least;
  const auto middle = hn::Set(d, shift);
  size_t i = 0;
  for (; i + step <= size; i += step) {
    auto zeros = hn::MaskFromVec(hn::Zero(f));
    for (size_t k = i; k < i + step; k += hn::Lanes(f)) {
      const auto v = hn::LoadU(f, x + k);
      zeros = hn::Or(zeros, hn::Eq(v, hn::Zero(f)));
      least = hn::Min(least, v);
      most = hn::Max(most, v);
      smallest = hn::Min(smallest, hn::Abs(v));
    }
    for (size_t k = i; k < i + step; k += parts * hn::Lanes(d)) {
      for (size_t p = 0; p < parts; ++p) {
        const auto far = hn::Sub(hn::PromoteTo(d, hn::LoadU(h, x + k + p * hn::Lanes(d))), middle);
        sum[p] = hn::Add(sum[p], far);
        squares[p] = hn::MulAdd(far, far, squares[p]);
      }
    }
    if (with_counters && hn::AllFalse(f, zeros)) {
      count(x + i, step, counters);
    } else if (with_counters) {
      count_others(x + i, step, counters);
    }
  }
  const auto add = [](double a, double b) { return a + b; };
  const auto less = [](float a, float b) { return std::min(a, b); };
  FloatSums out;
  for (size_t p = 0; p < parts; ++p) {
    out.sum += joined(d, sum[p], add);
    out.squares += joined(d, squares[p], add);
  }
  out.least = joined(f, least, less);
  out.most = joined(f, most, [](float a, float b) { return std::max(a, b); });
  out.smallest = joined(f, smallest, less);
  if (with_counters) count_others(x + i, size - i, counters);
  for (; i < size; ++i) {
    const double far = static_cast<double>(x[i]) - shift;
    out.sum += far;
    out.squares += far * far;
    out.least = std::min(out.least, x[i]);
    out.most = std::max(out.most, x[i]);
    out.smallest = std::min(out.smallest, std::fabs(x[i]));
  }
  return out;
}

FloatSums any_sums(const float* x, size_t size, double shift, uint32_t* counters) {
  return counters == nullptr ? sums<false>(x, size, shift, counters) : sums<true>(x, size, shift, counters);
}

}  // namespace cbk::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cbk {

HWY_EXPORT(any_sums);

FloatSums sums_of_floats(const float* x, size_t count, double shift, uint32_t* counters) {
  return HWY_DYNAMIC_DISPATCH(any_sums)(x, count, shift, counters);
}

}  // namespace cbk
#endif
