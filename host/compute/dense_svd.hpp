// Decompositions of dense matrices in memory, by Eigen, on one thread.
#pragma once

#include <cstdint>
#include <vector>

namespace cbk::compute {

/// Replaces the columns of a (rows, columns) matrix in C order, rows >= columns, by an orthonormal basis that
/// contains their span (Householder).
void orthonormalize(std::vector<float>& matrix, int64_t rows, int64_t columns);

/// a ≈ left · diag(values) · right. C order; values from the largest down.
struct Svd {
  std::vector<double> left;    // (rows, count)
  std::vector<double> values;  // (count)
  std::vector<double> right;   // (count, columns)
};

/// The thin decomposition of a (rows, columns) matrix in C order, with count = min(rows, columns)
/// (bidiagonal divide and conquer).
Svd svd_of(const std::vector<double>& matrix, int64_t rows, int64_t columns);

}  // namespace cbk::compute
