// What is kept of the difference between two models' weights: the largest elements (TIES), or a random share
// of them (DARE). Which they are is measured over the whole tensor, in bounded memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "host/tensor/expression.hpp"

namespace cbk {

/// Which elements of a difference are kept; the others become 0.
struct TrimRule {
  enum class Kind { none, magnitude, random };
  Kind kind = Kind::none;
  double density = 1;        // the share that is kept; from 1 on, all of them
  bool is_rescaled = false;  // those that are kept are scaled so that Σ |element| stays the same
  uint64_t stream = 0;       // random: a scrambled seed
  [[nodiscard]] bool keeps_all() const { return kind == Kind::none || density >= 1; }
  [[nodiscard]] std::string text() const;
};

/// The elements that a rule keeps of one difference.
struct Trim {
  uint32_t threshold = 0;  // magnitude: bits of a size (magnitude_bits); larger ones are kept
  int64_t last_equal = 0;  // equal ones are kept up to this position
  double scale = 1;
};

/// The number of elements that are kept by their size: the density times all, rounded down.
int64_t kept_by_size(const TrimRule& rule, int64_t numel);

/// Reads `tuned` - `base` on all threads. By magnitude: once, if it has at most 2^20 elements; else once for
/// the upper bits of the threshold, once for the lower ones, and at most a 16th for the last of equal
/// elements. One more reading measures the scale, and is the only one of random elements. Of elements of
/// equal size, the first are kept. Both have one dtype, float32 or float64.
Trim measure_trim(const TrimRule& rule, const Expression& base, const Expression& tuned);

/// Sets the elements of a difference from position `begin` on to 0 unless they are kept, and scales those.
void apply_trim(const TrimRule& rule, const Trim& trim, DType dtype, int64_t begin, std::byte* elements,
                int64_t count);

}  // namespace cbk
