// Sums and products over dense rows. Lanes are added in a fixed order; long rows are added up in double.
#pragma once

#include <cstdint>

namespace cbk::compute {

double row_sum(const float* x, int64_t count);
double row_sum(const double* x, int64_t count);
double row_dot(const float* x, const float* y, int64_t count);
double row_dot(const double* x, const double* y, int64_t count);
/// NaN if there is one.
float row_max(const float* x, int64_t count);
double row_max(const double* x, int64_t count);
/// y += a·x
void row_add(float* y, const float* x, float a, int64_t count);
void row_add(double* y, const double* x, double a, int64_t count);
/// total += x, in double
void row_collect(double* total, const float* x, int64_t count);
void row_collect(double* total, const double* x, int64_t count);

}  // namespace cbk::compute
