// Differences of two runs of finite numbers: loops for the vector unit.
#pragma once

#include <cstddef>
#include <limits>

namespace cbk {

/// Sums over pairs of finite numbers x, y. A long double holds the squares of all doubles.
struct PairSums {
  long double xy = 0;  // Σ x · y
  long double xx = 0;
  long double yy = 0;
  long double dd = 0;  // Σ (x - y)²

  void add(long double x, long double y) {
    xy += x * y;
    xx += x * x;
    yy += y * y;
    dd += (x - y) * (x - y);
  }
  PairSums& operator+=(const PairSums& other) {
    xy += other.xy;
    xx += other.xx;
    yy += other.yy;
    dd += other.dd;
    return *this;
  }
};

struct PairDistances {
  double max_absolute = 0;  // largest |x - y|
  size_t different = 0;     // pairs with |x - y| > absolute + relative · |y|
  bool may_exceed = false;  // some |x - y| / max(|x|, |y|) may be larger than the one that is known
};

/// Known and requested limits of distances.
struct DistanceLimits {
  double absolute = 0;
  double relative = 0;
  double max_relative = 0;  // the largest so far
};

struct PairResults {
  PairSums sums;
  PairDistances distances;
};

/// Computed in double, in one pass. Numbers that are not finite make the sums not finite, too; so do large
/// doubles, and squares of small doubles are 0.
PairResults compare_pairs(const float* x, const float* y, size_t count, const DistanceLimits& limits);
PairResults compare_pairs(const double* x, const double* y, size_t count, const DistanceLimits& limits);
/// The largest |x - y| / max(|x|, |y|).
double max_relative_of_pairs(const float* x, const float* y, size_t count);
double max_relative_of_pairs(const double* x, const double* y, size_t count);
/// The largest finite |x| and the smallest that is not 0; 0 and infinity if there are no such numbers.
struct Sizes {
  double most = 0;
  double least = std::numeric_limits<double>::infinity();
};
Sizes sizes_of(const float* x, size_t count);
Sizes sizes_of(const double* x, size_t count);

double sum_of_squares(const float* x, size_t count);
double sum_of_squares(const double* x, size_t count);

}  // namespace cbk
