// Sums and products over dense rows. Lanes are added in a fixed order; long rows are summed in double.
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
/// total += g·(x - shift)·scale, in double
void row_collect(double* total, const float* g, const float* x, float shift, float scale, int64_t count);
void row_collect(double* total, const double* g, const double* x, double shift, double scale, int64_t count);
/// y = x - a
void row_shift(float* y, const float* x, float a, int64_t count);
void row_shift(double* y, const double* x, double a, int64_t count);
/// y = y·scale·weight + bias; the bias may be missing
void row_scale(float* y, const float* weight, const float* bias, float scale, int64_t count);
void row_scale(double* y, const double* weight, const double* bias, double scale, int64_t count);
/// y = weight·(g - a), which may be one of them
void row_slope(float* y, const float* weight, const float* g, float a, int64_t count);
void row_slope(double* y, const double* weight, const double* g, double a, int64_t count);

}  // namespace cbk::compute
