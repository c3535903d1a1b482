// Loops that merge the elements of several models, in float32 or float64. Sums are added in the order of the
// parts, and each operation is rounded, as a program does it that computes with whole tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "host/tensor/dtype.hpp"

namespace cbk {

/// out[i] = (Σ weights[k] · parts[k][i]) / divisor.
void add_weighted(DType dtype, std::span<std::byte* const> parts, std::span<const double> weights,
                  double divisor, std::byte* out, int64_t count);

/// elements[i] -= base[i].
void subtract(DType dtype, std::byte* elements, const std::byte* base, int64_t count);

/// How the differences of several models become one.
struct DifferenceMix {
  std::span<const double> weights;
  bool has_consensus = false;  // only differences with the sign of their weighted sum count (TIES)
  bool is_normalized = false;  // the sum is divided by that of the weights that count
  double factor = 1;           // lambda
};

/// out[i] = base[i] + factor · the mix of parts[k][i].
void mix_differences(DType dtype, const DifferenceMix& mix, std::span<std::byte* const> parts,
                     const std::byte* base, std::byte* out, int64_t count);

/// The sizes of elements as float32: bits that sort like the sizes. NaN is larger than all numbers.
void magnitude_bits(DType dtype, const std::byte* elements, uint32_t* out, int64_t count);

/// Sets to 0 the elements with a size below `threshold` (of magnitude_bits), and those of that size from the
/// `equal`-th element on.
void keep_largest(DType dtype, uint32_t threshold, int64_t equal, std::byte* elements, int64_t count);

/// Sets to 0 the elements whose random number (uniform_at) is not below `density`; `begin` is the position of
/// the first.
void keep_random(DType dtype, uint64_t stream, int64_t begin, double density, std::byte* elements,
                 int64_t count);

/// Adds 1 to counters[bits >> shift] for each element. `counters` are two sets of `size`, of which each takes
/// every other element: equal elements in a row would wait for each other.
void count_bits(const uint32_t* bits, int64_t count, int shift, uint32_t* counters, size_t size);

/// Σ a², Σ b² and Σ a·b, in float64.
struct Products {
  double aa = 0;
  double bb = 0;
  double ab = 0;
  Products& operator+=(const Products& other) {
    aa += other.aa;
    bb += other.bb;
    ab += other.ab;
    return *this;
  }
};
Products products_of(DType dtype, const std::byte* a, const std::byte* b, int64_t count);

/// Σ |element|, in float64.
double sum_of_sizes(DType dtype, const std::byte* elements, int64_t count);

/// elements[i] *= factor.
void multiply_by(DType dtype, std::byte* elements, double factor, int64_t count);

}  // namespace cbk
