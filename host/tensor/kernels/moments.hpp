// The results of one pass over dense numbers: counts, extremes, mean and squared deviations; and the counts
// of ranges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace cbk {

/// All fields except `nan` and `inf` are about the finite numbers.
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

/// Counters of ranges of float32 numbers: the upper 16 bits of a number choose its counter, so there are 128
/// ranges for each factor of two. Finite numbers other than 0 are counted.
inline constexpr size_t counter_count = 1 << 16;

/// Adds numbers to the moments, and to the counters unless they are null. Numbers other than 0 below
/// `least_normal` are subnormal.
void add_numbers(Moments& moments, std::span<const float> numbers, double least_normal, uint32_t* counters);
void add_numbers(Moments& moments, std::span<const double> numbers, double least_normal, uint32_t* counters);

/// Adds 1 for each byte, to one of four counters: counters[i] counts the byte i % 256.
void count_bytes(std::span<const std::byte> bytes, uint32_t* counters);
/// Adds 1 for each 16 bits, to the counter of their value.
void count_pairs(std::span<const std::byte> bytes, uint32_t* counters);

/// The counter of a number: that of the largest float32 that is not above it.
size_t counter_of(double number);

/// The counter at a place in ascending order of their numbers: from 0 to counter_count − 1. The bits of a
/// positive float ascend with its value, those of a negative one descend.
constexpr size_t counter_at(size_t place) {
  return place < counter_count / 2 ? counter_count - 1 - place : place - counter_count / 2;
}

/// The least number that the counter at this place counts; numbers of the next counter are above all of this
/// one's.
double counter_begin(size_t place);

}  // namespace cbk
