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

template <typename T>
inline PairDistances distances(const T* x, const T* y, size_t count, double absolute, double relative) {
  double most[lanes] = {}, most_relative[lanes] = {}, different[lanes] = {};
  const auto step = [&](size_t i, size_t lane) {
    const auto a = static_cast<double>(x[i]);
    const auto b = static_cast<double>(y[i]);
    const double distance = std::fabs(a - b);
    const double size_a = std::fabs(a);
    const double size_b = std::fabs(b);
    // Only a distance of 0 has no larger number to be divided by.
    const double larger = std::max(std::max(size_a, size_b), std::numeric_limits<double>::denorm_min());
    const double share = distance / larger;
    most[lane] = distance > most[lane] ? distance : most[lane];
    most_relative[lane] = share > most_relative[lane] ? share : most_relative[lane];
    different[lane] += distance > absolute + relative * size_b ? 1.0 : 0.0;
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
    out.max_relative = std::max(out.max_relative, most_relative[lane]);
    total += different[lane];
  }
  out.different = static_cast<size_t>(total);
  return out;
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
CBK_CLONES PairDistances distances_of_pairs(const float* x, const float* y, size_t count, double absolute,
                                            double relative) {
  return distances(x, y, count, absolute, relative);
}
CBK_CLONES PairDistances distances_of_pairs(const double* x, const double* y, size_t count, double absolute,
                                            double relative) {
  return distances(x, y, count, absolute, relative);
}
CBK_CLONES double sum_of_squares(const float* x, size_t count) {
  return squares(x, count);
}
CBK_CLONES double sum_of_squares(const double* x, size_t count) {
  return squares(x, count);
}

}  // namespace cbk
