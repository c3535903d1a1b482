#include "host/tensor/kernels/differences.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "host/base/clones.hpp"

namespace cbk {
namespace {

constexpr size_t lanes = 8;  // side by side, for the vector unit; joined in order at the end

template <typename T>
inline PairSums sums(const T* x, const T* y, size_t count) {
  double xy[lanes] = {}, xx[lanes] = {}, yy[lanes] = {}, dd[lanes] = {};
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (size_t lane = 0; lane < lanes; ++lane) {
      const auto a = static_cast<double>(x[i + lane]);
      const auto b = static_cast<double>(y[i + lane]);
      xy[lane] += a * b;
      xx[lane] += a * a;
      yy[lane] += b * b;
      dd[lane] += (a - b) * (a - b);
    }
  }
  PairSums out;
  for (size_t lane = 0; lane < lanes; ++lane) out += {xy[lane], xx[lane], yy[lane], dd[lane]};
  for (; i < count; ++i) out.add(static_cast<double>(x[i]), static_cast<double>(y[i]));
  return out;
}

/// No division: few numbers exceed what earlier ones had.
template <typename T>
inline PairDistances distances(const T* x, const T* y, size_t count, const DistanceLimits& limits) {
  double most[lanes] = {}, excess[lanes] = {}, different[lanes] = {};
  const double known = limits.max_relative * (1 - 8 * std::numeric_limits<double>::epsilon());
  const auto step = [&](size_t i, size_t lane) {
    const auto a = static_cast<double>(x[i]);
    const auto b = static_cast<double>(y[i]);
    const double distance = std::fabs(a - b);
    const double size_a = std::fabs(a);
    const double size_b = std::fabs(b);
    const double larger = size_a > size_b ? size_a : size_b;
    const double beyond = distance - known * larger;
    most[lane] = distance > most[lane] ? distance : most[lane];
    excess[lane] = beyond > excess[lane] ? beyond : excess[lane];
    different[lane] += distance > limits.absolute + limits.relative * size_b ? 1.0 : 0.0;
  };
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (size_t lane = 0; lane < lanes; ++lane) step(i + lane, lane);
  }
  for (; i < count; ++i) step(i, 0);
  PairDistances out;
  double total = 0;
  for (size_t lane = 0; lane < lanes; ++lane) {
    out.max_absolute = std::max(out.max_absolute, most[lane]);
    out.may_exceed = out.may_exceed || excess[lane] > 0;
    total += different[lane];
  }
  out.different = static_cast<size_t>(total);
  return out;
}

template <typename T>
inline double max_relative(const T* x, const T* y, size_t count) {
  double most[lanes] = {};
  const auto step = [&](size_t i, size_t lane) {
    const auto a = static_cast<double>(x[i]);
    const auto b = static_cast<double>(y[i]);
    const double size_a = std::fabs(a);
    const double size_b = std::fabs(b);
    const double larger = size_a > size_b ? size_a : size_b;
    // Only a distance of 0 has no larger number to be divided by.
    const double share = std::fabs(a - b) / (larger > 0 ? larger : 1);
    most[lane] = share > most[lane] ? share : most[lane];
  };
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (size_t lane = 0; lane < lanes; ++lane) step(i + lane, lane);
  }
  for (; i < count; ++i) step(i, 0);
  return *std::max_element(most, most + lanes);
}

template <typename T>
inline double squares(const T* x, size_t count) {
  double sums[lanes] = {};
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (size_t lane = 0; lane < lanes; ++lane) {
      const auto number = static_cast<double>(x[i + lane]);
      sums[lane] += number * number;
    }
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  for (; i < count; ++i) total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return total;
}

}  // namespace

CBK_CLONES PairSums sums_of_pairs(const float* x, const float* y, size_t count) {
  return sums(x, y, count);
}
CBK_CLONES PairSums sums_of_pairs(const double* x, const double* y, size_t count) {
  return sums(x, y, count);
}
CBK_CLONES PairDistances distances_of_pairs(const float* x, const float* y, size_t count,
                                            const DistanceLimits& limits) {
  return distances(x, y, count, limits);
}
CBK_CLONES PairDistances distances_of_pairs(const double* x, const double* y, size_t count,
                                            const DistanceLimits& limits) {
  return distances(x, y, count, limits);
}
CBK_CLONES double max_relative_of_pairs(const float* x, const float* y, size_t count) {
  return max_relative(x, y, count);
}
CBK_CLONES double max_relative_of_pairs(const double* x, const double* y, size_t count) {
  return max_relative(x, y, count);
}
CBK_CLONES Sizes sizes_of(const double* x, size_t count) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double most[lanes] = {}, least[lanes];
  std::fill_n(least, lanes, infinity);
  const auto step = [&](size_t i, size_t lane) {
    const double size = std::fabs(x[i]);
    const double finite = size < infinity ? size : 0;
    const double present = finite > 0 ? finite : infinity;
    most[lane] = finite > most[lane] ? finite : most[lane];
    least[lane] = present < least[lane] ? present : least[lane];
  };
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (size_t lane = 0; lane < lanes; ++lane) step(i + lane, lane);
  }
  for (; i < count; ++i) step(i, 0);
  return {*std::max_element(most, most + lanes), *std::min_element(least, least + lanes)};
}
CBK_CLONES double sum_of_squares(const float* x, size_t count) {
  return squares(x, count);
}
CBK_CLONES double sum_of_squares(const double* x, size_t count) {
  return squares(x, count);
}

}  // namespace cbk
