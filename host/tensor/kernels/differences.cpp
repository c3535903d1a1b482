#include "host/tensor/kernels/differences.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "host/base/clones.hpp"

namespace cbk {
namespace {

constexpr size_t lanes = 8;  // side by side, for the vector unit; joined in order at the end

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

/// By the bits of |x|, which ascend with it: integers vectorise well. 0 less 1 is the largest.
template <typename Bits, typename T>
inline Sizes sizes(const T* x, size_t count) {
  constexpr auto infinity = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
  Bits most = 0, least = infinity - 1;
  for (size_t i = 0; i < count; ++i) {
    const Bits size = std::bit_cast<Bits>(x[i]) & ~(Bits{1} << (8 * sizeof(Bits) - 1));
    const Bits finite = size & (Bits{0} - Bits{size < infinity});
    const Bits less = size - 1;
    most = finite > most ? finite : most;
    least = less < least ? less : least;
  }
  return {std::bit_cast<T>(most), std::bit_cast<T>(least + 1)};
}

}  // namespace

CBK_CLONES double max_relative_of_pairs(const float* x, const float* y, size_t count) {
  return max_relative(x, y, count);
}
CBK_CLONES double max_relative_of_pairs(const double* x, const double* y, size_t count) {
  return max_relative(x, y, count);
}
CBK_CLONES Sizes sizes_of(const float* x, size_t count) {
  return sizes<uint32_t>(x, count);
}
CBK_CLONES Sizes sizes_of(const double* x, size_t count) {
  return sizes<uint64_t>(x, count);
}
CBK_CLONES double sum_of_squares(const float* x, size_t count) {
  return squares(x, count);
}
CBK_CLONES double sum_of_squares(const double* x, size_t count) {
  return squares(x, count);
}

}  // namespace cbk
