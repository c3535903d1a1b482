#include "host/tensor/kernels/moments.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "host/base/clones.hpp"

namespace cbk {
namespace {

constexpr size_t lanes = 16;  // sums side by side, for the vector unit

template <typename T>
struct Extremes {
  T min = std::numeric_limits<T>::infinity();
  T max = -std::numeric_limits<T>::infinity();
};

/// One accumulator for each lane, joined in order at the end: the result is that of any instruction set.
template <typename Sum, typename T, typename Step>
inline Sum summed(const T* x, size_t count, Step&& step) {
  Sum sums[lanes] = {};
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (size_t lane = 0; lane < lanes; ++lane) sums[lane] += step(x[i + lane]);
  }
  Sum total = 0;
  for (const Sum sum : sums) total += sum;
  for (; i < count; ++i) total += step(x[i]);
  return total;
}

template <typename T>
inline Extremes<T> extremes(const T* x, size_t count) {
  Extremes<T> out;
  T least[lanes], most[lanes];
  std::fill_n(least, lanes, out.min);
  std::fill_n(most, lanes, out.max);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (size_t lane = 0; lane < lanes; ++lane) {
      const T number = x[i + lane];
      least[lane] = number < least[lane] ? number : least[lane];
      most[lane] = number > most[lane] ? number : most[lane];
    }
  }
  for (; i < count; ++i) {
    least[0] = std::min(least[0], x[i]);
    most[0] = std::max(most[0], x[i]);
  }
  out.min = *std::min_element(least, least + lanes);
  out.max = *std::max_element(most, most + lanes);
  return out;
}

// 0 · x is 0 for a finite x, else NaN.
CBK_CLONES bool all_finite(const float* x, size_t count) {
  return summed<float>(x, count, [](float number) { return 0.0F * number; }) == 0;
}
CBK_CLONES bool all_finite(const double* x, size_t count) {
  return summed<double>(x, count, [](double number) { return 0.0 * number; }) == 0;
}

CBK_CLONES int64_t zeros_in(const float* x, size_t count) {
  return summed<int32_t>(x, count, [](float number) { return number == 0 ? 1 : 0; });
}
CBK_CLONES int64_t zeros_in(const double* x, size_t count) {
  return summed<int64_t>(x, count, [](double number) { return number == 0 ? 1 : 0; });
}

CBK_CLONES int64_t small_in(const float* x, size_t count, float limit) {
  return summed<int32_t>(x, count, [limit](float number) { return std::fabs(number) < limit ? 1 : 0; });
}
CBK_CLONES int64_t small_in(const double* x, size_t count, double limit) {
  return summed<int64_t>(x, count, [limit](double number) { return std::fabs(number) < limit ? 1 : 0; });
}

CBK_CLONES Extremes<float> extremes_of(const float* x, size_t count) {
  return extremes(x, count);
}
CBK_CLONES Extremes<double> extremes_of(const double* x, size_t count) {
  return extremes(x, count);
}

// Squares of all float32 numbers fit in a double.
CBK_CLONES double sum_of(const float* x, size_t count) {
  return summed<double>(x, count, [](float number) { return static_cast<double>(number); });
}
CBK_CLONES double squares_of(const float* x, size_t count, double mean) {
  return summed<double>(x, count, [mean](float number) {
    const double d = static_cast<double>(number) - mean;
    return d * d;
  });
}

// A long double holds the squares of all doubles.
long double sum_of(const double* x, size_t count) {
  long double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += x[i];
  return sum;
}
long double squares_of(const double* x, size_t count, long double mean) {
  long double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += (x[i] - mean) * (x[i] - mean);
  return sum;
}

/// Sums of a few numbers at a time, joined in a long double: rounding errors grow with a chunk, not with all.
template <typename Sum>
long double in_chunks(size_t count, Sum&& sum) {
  constexpr size_t chunk = 1024;
  long double total = 0;
  for (size_t begin = 0; begin < count; begin += chunk) total += sum(begin, std::min(chunk, count - begin));
  return total;
}

template <typename T>
void take_out_infinities(std::vector<T>& numbers, Moments& out) {
  const auto end = std::remove_if(numbers.begin(), numbers.end(), [&](T number) {
    if (std::isfinite(number)) return false;
    ++(std::isnan(number) ? out.nan : out.inf);
    return true;
  });
  numbers.erase(end, numbers.end());
}

template <typename T>
Moments moments(std::vector<T>& numbers, double least_normal) {
  Moments out;
  if (!all_finite(numbers.data(), numbers.size())) take_out_infinities(numbers, out);
  if (numbers.empty()) return out;
  const T* x = numbers.data();
  const size_t count = numbers.size();
  out.count = static_cast<int64_t>(count);
  const int64_t small =
      small_in(x, count, std::max(static_cast<T>(least_normal), std::numeric_limits<T>::min()));
  out.zeros = small == 0 ? 0 : zeros_in(x, count);
  out.subnormal = least_normal == 0 ? 0 : small - out.zeros;
  const auto [min, max] = extremes_of(x, count);
  out.min = static_cast<double>(min);
  out.max = static_cast<double>(max);
  out.mean = in_chunks(count, [&](size_t begin, size_t size) { return sum_of(x + begin, size); }) /
             static_cast<long double>(count);
  const auto mean = static_cast<decltype(sum_of(x, count))>(out.mean);
  out.squares =
      in_chunks(count, [&](size_t begin, size_t size) { return squares_of(x + begin, size, mean); });
  return out;
}

}  // namespace

void Moments::merge(const Moments& other) {
  nan += other.nan;
  inf += other.inf;
  zeros += other.zeros;
  subnormal += other.subnormal;
  if (other.count == 0) return;
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  const long double delta = other.mean - mean;
  const auto total = static_cast<long double>(count + other.count);
  mean += delta * static_cast<long double>(other.count) / total;
  squares += other.squares +
             delta * delta * static_cast<long double>(count) * static_cast<long double>(other.count) / total;
  count += other.count;
}

Moments moments_of(std::vector<float>& numbers, double least_normal) {
  return moments(numbers, least_normal);
}

Moments moments_of(std::vector<double>& numbers, double least_normal) {
  return moments(numbers, least_normal);
}

// The bits of a positive float ascend with its value, those of a negative one descend.
size_t counter_of(float number) {
  const auto bits = std::bit_cast<uint32_t>(number + 0.0F);
  return (bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000U)) >> 16;
}

namespace {
CBK_CLONES void counters_of(const float* x, size_t count, uint16_t* out) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint16_t>(counter_of(x[i]));
}
}  // namespace

void count_floats(std::span<const float> numbers, std::span<uint32_t, counter_count> counters) {
  constexpr size_t chunk = 1024;
  std::array<uint16_t, chunk> chosen;
  for (size_t begin = 0; begin < numbers.size(); begin += chunk) {
    const size_t count = std::min(chunk, numbers.size() - begin);
    counters_of(numbers.data() + begin, count, chosen.data());
    for (size_t i = 0; i < count; ++i) ++counters[chosen[i]];
  }
}

float counter_begin(size_t counter) {
  const auto flipped = static_cast<uint32_t>(counter << 16);
  const auto number = std::bit_cast<float>((flipped & 0x80000000U) != 0 ? flipped ^ 0x80000000U : ~flipped);
  // What is below all float32 numbers shares a counter with the bits of NaN.
  return std::isnan(number) ? -std::numeric_limits<float>::infinity() : number;
}

float floor_to_float(double number) {
  const auto rounded = static_cast<float>(number);
  if (static_cast<double>(rounded) <= number) return rounded;
  return std::nextafter(rounded, -std::numeric_limits<float>::infinity());
}

}  // namespace cbk
