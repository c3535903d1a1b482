// Losses by rounding: counts of elements that a dtype could not hold.
#pragma once

#include <cstdint>

namespace cbk {

struct Losses {
  int64_t overflowed = 0;  // finite numbers that became infinite or NaN
  int64_t changed = 0;     // integers that are not the number they came from (a fraction, out of range, NaN)
  int64_t vanished = 0;    // numbers that became 0

  Losses& operator+=(const Losses& other) {
    overflowed += other.overflowed;
    changed += other.changed;
    vanished += other.vanished;
    return *this;
  }
  bool operator==(const Losses&) const = default;

  /// Whether numbers changed, other than small ones becoming 0.
  [[nodiscard]] bool are_grave() const { return overflowed + changed > 0; }
  [[nodiscard]] bool any() const { return are_grave() || vanished > 0; }
};

}  // namespace cbk
