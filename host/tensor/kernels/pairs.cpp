// Compiled once for each instruction set (Highway's foreach_target).
#include <algorithm>
#include <cmath>
#include <limits>

#include "host/tensor/kernels/differences.hpp"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/tensor/kernels/pairs.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cbk::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<double>;

HWY_INLINE hn::Vec<D> doubles_at(const float* x) {
  return hn::PromoteTo(D{}, hn::LoadU(hn::Rebind<float, D>{}, x));
}
HWY_INLINE hn::Vec<D> doubles_at(const double* x) {
  return hn::LoadU(D{}, x);
}

/// Of all lanes.
HWY_INLINE double sum_of(hn::Vec<D> v) {
  return hn::GetLane(hn::SumOfLanes(D{}, v));
}
HWY_INLINE double max_of(hn::Vec<D> v) {
  return hn::GetLane(hn::MaxOfLanes(D{}, v));
}

/// No division: few numbers exceed what earlier ones had.
template <typename T>
PairResults results(const T* x, const T* y, size_t count, const DistanceLimits& limits) {
  const D d;
  const double known = limits.max_relative * (1 - 8 * std::numeric_limits<double>::epsilon());
  const auto absolute = hn::Set(d, limits.absolute), relative = hn::Set(d, limits.relative);
  const auto factor = hn::Set(d, known);
  hn::Vec<D> xy = hn::Zero(d), xx = xy, yy = xy, dd = xy, most = xy, excess = xy;
  PairResults out;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto a = doubles_at(x + i), b = doubles_at(y + i);
    const auto size_a = hn::Abs(a), size_b = hn::Abs(b);
    const auto distance = hn::Abs(hn::Sub(a, b));
    xy = hn::MulAdd(a, b, xy);
    xx = hn::MulAdd(a, a, xx);
    yy = hn::MulAdd(b, b, yy);
    dd = hn::MulAdd(distance, distance, dd);
    most = hn::Max(most, distance);
    excess = hn::Max(excess, hn::NegMulAdd(factor, hn::Max(size_a, size_b), distance));
    // Rounds as elsewhere.
    const auto allowed = hn::Add(absolute, hn::Mul(relative, size_b));
    out.distances.different += hn::CountTrue(d, hn::Gt(distance, allowed));
  }
  out.sums = {sum_of(xy), sum_of(xx), sum_of(yy), sum_of(dd)};
  out.distances.max_absolute = max_of(most);
  out.distances.may_exceed = max_of(excess) > 0;
  for (; i < count; ++i) {
    const auto a = static_cast<double>(x[i]), b = static_cast<double>(y[i]);
    const double distance = std::fabs(a - b);
    out.sums.add(a, b);
    out.distances.max_absolute = std::max(out.distances.max_absolute, distance);
    out.distances.may_exceed =
        out.distances.may_exceed || distance > known * std::max(std::fabs(a), std::fabs(b));
    out.distances.different += distance > limits.absolute + limits.relative * std::fabs(b) ? 1 : 0;
  }
  return out;
}

PairResults of_floats(const float* x, const float* y, size_t count, const DistanceLimits& limits) {
  return results(x, y, count, limits);
}
PairResults of_doubles(const double* x, const double* y, size_t count, const DistanceLimits& limits) {
  return results(x, y, count, limits);
}

}  // namespace cbk::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cbk {

HWY_EXPORT(of_floats);
HWY_EXPORT(of_doubles);

PairResults compare_pairs(const float* x, const float* y, size_t count, const DistanceLimits& limits) {
  return HWY_DYNAMIC_DISPATCH(of_floats)(x, y, count, limits);
}
PairResults compare_pairs(const double* x, const double* y, size_t count, const DistanceLimits& limits) {
  return HWY_DYNAMIC_DISPATCH(of_doubles)(x, y, count, limits);
}

}  // namespace cbk
#endif
