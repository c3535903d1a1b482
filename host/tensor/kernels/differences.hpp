// How two runs of finite numbers differ: plain loops for the vector unit.
#pragma once

#include <cstddef>

namespace cbk {

/// Sums over pairs of finite numbers x, y.
struct PairSums {
  double xy = 0;  // Σ x · y
  double xx = 0;
  double yy = 0;
  double dd = 0;  // Σ (x - y)²

  void add(double x, double y) {
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
  double max_relative = 0;  // largest |x - y| / max(|x|, |y|)
  size_t different = 0;     // pairs with |x - y| > absolute + relative · |y|
};

/// Computed in double.
PairSums sums_of_pairs(const float* x, const float* y, size_t count);
PairSums sums_of_pairs(const double* x, const double* y, size_t count);
PairDistances distances_of_pairs(const float* x, const float* y, size_t count, double absolute,
                                 double relative);
PairDistances distances_of_pairs(const double* x, const double* y, size_t count, double absolute,
                                 double relative);
double sum_of_squares(const float* x, size_t count);
double sum_of_squares(const double* x, size_t count);

}  // namespace cbk
