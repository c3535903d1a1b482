#include "host/tensor/kernels/moments.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "host/base/clones.hpp"
#include "host/tensor/kernels/float_sums.hpp"

namespace cbk {
namespace {

constexpr size_t summed_together = 1024;  // numbers whose sums are joined in a long double: rounding errors
                                          // grow with it, not with all

size_t upper_half(float number) {
  return std::bit_cast<uint32_t>(number) >> 16;
}

/// The largest float32 that is not above `number`.
float floor_to_float(double number) {
  const auto rounded = static_cast<float>(number);
  if (static_cast<double>(rounded) <= number) return rounded;
  return std::nextafter(rounded, -std::numeric_limits<float>::infinity());
}

template <typename T>
void note_strange(Moments& out, T number) {
  ++(std::isnan(number) ? out.nan : out.inf);
}

/// Sums of the finite numbers of a chunk; the others are counted.
FloatSums finite_sums(std::span<const float> numbers, double shift, uint32_t* counters, Moments& out) {
  FloatSums sums = sums_of_floats(numbers.data(), numbers.size(), shift, counters);
  sums.count = static_cast<int64_t>(numbers.size());
  if (std::isfinite(sums.squares)) return sums;  // squares of all float32 numbers fit in a double
  std::array<float, summed_together> room;
  size_t count = 0;
  for (const float number : numbers) {
    if (std::isfinite(number)) {
      room[count++] = number;
    } else {
      note_strange(out, number);
      if (counters != nullptr) --counters[upper_half(number)];
    }
  }
  sums = sums_of_floats(room.data(), count, shift, nullptr);
  sums.count = static_cast<int64_t>(count);
  return sums;
}

/// The sizes of a chunk that are below the limit, as int32, which is as wide as the numbers.
CBK_CLONES int32_t count_below(const float* x, size_t count, float limit) {
  int32_t out = 0;
  for (size_t i = 0; i < count; ++i) out += std::fabs(x[i]) < limit ? 1 : 0;
  return out;
}

void count_small(std::span<const float> numbers, float limit, bool has_subnormal, Moments& out) {
  constexpr float least = std::numeric_limits<float>::denorm_min();
  const int32_t zeros = count_below(numbers.data(), numbers.size(), least);
  out.zeros += zeros;
  if (has_subnormal) out.subnormal += count_below(numbers.data(), numbers.size(), limit) - zeros;
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

// Sums are of distances from a number among them: the mean so far is near the next numbers.
void add_numbers(Moments& moments, std::span<const float> numbers, double least_normal, uint32_t* counters) {
  const float limit = std::max(static_cast<float>(least_normal), std::numeric_limits<float>::min());
  const auto first = std::ranges::find_if(numbers, [](float number) { return std::isfinite(number); });
  const double shift = moments.count > 0        ? static_cast<double>(moments.mean)
                       : first != numbers.end() ? static_cast<double>(*first)
                                                : 0;
  Moments found;
  long double sum = 0;
  for (size_t begin = 0; begin < numbers.size(); begin += summed_together) {
    const auto part = numbers.subspan(begin, std::min(summed_together, numbers.size() - begin));
    const FloatSums sums = finite_sums(part, shift, counters, found);
    found.count += sums.count;
    sum += sums.sum;
    found.squares += sums.squares;
    found.min = std::min(found.min, static_cast<double>(sums.least));
    found.max = std::max(found.max, static_cast<double>(sums.most));
    if (sums.smallest < limit) count_small(part, limit, least_normal > 0, found);
  }
  if (found.count > 0) {
    const auto count = static_cast<long double>(found.count);
    found.mean = shift + sum / count;
    found.squares = std::max(found.squares - sum * sum / count, 0.0L);
  }
  moments.merge(found);
}

namespace {
/// A long double holds the squares of all doubles.
void add_finite(Moments& moments, std::span<const double> numbers, double least_normal, uint32_t* counters) {
  Moments found;
  found.count = static_cast<int64_t>(numbers.size());
  for (const double number : numbers) {
    found.mean += number;
    found.min = std::min(found.min, number);
    found.max = std::max(found.max, number);
    if (number == 0) {
      ++found.zeros;
    } else if (std::fabs(number) < least_normal) {
      ++found.subnormal;
    }
  }
  for (const double number : counters != nullptr ? numbers : std::span<const double>{}) {
    if (number != 0) ++counters[counter_of(number)];
  }
  found.mean /= static_cast<long double>(found.count);
  for (const double number : numbers) found.squares += (number - found.mean) * (number - found.mean);
  moments.merge(found);
}
}  // namespace

void add_numbers(Moments& moments, std::span<const double> numbers, double least_normal, uint32_t* counters) {
  const auto is_finite = [](double number) { return std::isfinite(number); };
  if (std::ranges::all_of(numbers, is_finite)) {
    if (!numbers.empty()) add_finite(moments, numbers, least_normal, counters);
    return;
  }
  std::vector<double> finite;
  for (const double number : numbers) {
    if (is_finite(number)) {
      finite.push_back(number);
    } else {
      note_strange(moments, number);
    }
  }
  if (!finite.empty()) add_finite(moments, finite, least_normal, counters);
}

// Alternates between counters, so that runs of one byte do not wait for each other.
void count_bytes(std::span<const std::byte> bytes, uint32_t* counters) {
  for (size_t i = 0; i < bytes.size(); ++i) ++counters[i % 4 * 256 + std::to_integer<size_t>(bytes[i])];
}

void count_pairs(std::span<const std::byte> bytes, uint32_t* counters) {
#pragma GCC unroll 4
  for (size_t i = 0; i + 2 <= bytes.size(); i += 2) {
    uint16_t pattern = 0;
    std::memcpy(&pattern, bytes.data() + i, sizeof pattern);
    ++counters[pattern];
  }
}

size_t counter_of(double number) {
  return upper_half(floor_to_float(number));
}

double counter_begin(size_t place) {
  const auto upper = static_cast<uint32_t>(counter_at(place)) << 16;
  const auto number = std::bit_cast<float>(place < counter_count / 2 ? upper | 0xffffU : upper);
  // Numbers below all float32 numbers share a counter with the bits of NaN.
  return std::isnan(number) ? -std::numeric_limits<double>::infinity() : static_cast<double>(number);
}

}  // namespace cbk
