// What one pass over dense numbers finds: counts, extremes, mean and squared deviations; and how many fall
// into which range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace cbk {

/// All but the counts `nan` and `inf` are of the finite numbers.
struct Moments {
  int64_t count = 0;
  int64_t nan = 0;
  int64_t inf = 0;
  int64_t zeros = 0;
  int64_t subnormal = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  long double mean = 0;
  long double squares = 0;  // Σ (x − mean)²

  /// Adds the numbers of another part (Chan's formula).
  void merge(const Moments& other);
};

/// A block of numbers: what is not finite is taken out of it, into room of its own.
template <typename T>
struct Block {
  std::span<const T> numbers;
  std::vector<T> room{};
};

/// Adds a block. Numbers other than 0 below `least_normal` are subnormal.
void add_block(Moments& moments, Block<float>& block, double least_normal);
void add_block(Moments& moments, Block<double>& block, double least_normal);

/// Counters of ranges of float32 numbers: the upper 16 bits of a number choose its counter, so there are 128
/// ranges for each factor of two. They ascend; −0 is counted as 0.
inline constexpr size_t counter_count = 1 << 16;
void count_floats(std::span<const float> numbers, std::span<uint32_t, counter_count> counters);

size_t counter_of(float number);

/// The least number that a counter counts; what the next one counts is above all of its numbers.
float counter_begin(size_t counter);

/// The largest float32 that is not above `number`.
float floor_to_float(double number);

}  // namespace cbk
