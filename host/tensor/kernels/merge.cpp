// Compiled once for each instruction set (Highway's foreach_target): the compiler makes vectors of the loops.
#include "host/tensor/kernels/merge.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>
#include <vector>

#include "host/tensor/counter_random.hpp"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/tensor/kernels/merge.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cbk::HWY_NAMESPACE {
namespace {

constexpr int64_t merge_tile = 1024;  // elements of which all sums stay in the first-level cache
constexpr int64_t sum_lanes = 8;      // independent sums, for the vectoriser

/// `body` with the C++ type of the dtype.
template <typename Body>
auto with_float(DType dtype, Body&& body) {
  return dtype == DType::float64 ? body(std::type_identity<double>{}) : body(std::type_identity<float>{});
}

template <typename T>
T* typed(std::byte* elements) {
  return reinterpret_cast<T*>(elements);
}

template <typename T>
const T* typed(const std::byte* elements) {
  return reinterpret_cast<const T*>(elements);
}

template <typename T>
uint32_t size_bits(T number) {
  return std::bit_cast<uint32_t>(static_cast<float>(number)) & 0x7fffffffU;
}

/// The sum of `term(i)`, in an order that depends on the count alone.
template <typename Term>
double lane_sum(int64_t count, Term&& term) {
  std::array<double, sum_lanes> sums{};
  int64_t i = 0;
  for (; i + sum_lanes <= count; i += sum_lanes) {
    for (int64_t lane = 0; lane < sum_lanes; ++lane) sums[static_cast<size_t>(lane)] += term(i + lane);
  }
  for (; i < count; ++i) sums[0] += term(i);
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

template <typename T>
void add_weighted_as(std::span<std::byte* const> parts, std::span<const double> weights, T divisor, T* out,
                     int64_t count) {
  for (size_t k = 0; k < parts.size(); ++k) {
    const T* part = typed<T>(static_cast<const std::byte*>(parts[k]));
    const auto weight = static_cast<T>(weights[k]);
    if (k == 0) {
      for (int64_t i = 0; i < count; ++i) out[i] = weight * part[i];
    } else {
      for (int64_t i = 0; i < count; ++i) out[i] += weight * part[i];
    }
  }
  if (divisor == 1) return;
  for (int64_t i = 0; i < count; ++i) out[i] /= divisor;
}

/// The mix of a tile in `mixed`, and in `divisors` the sums of the weights that count.
template <typename T>
void add_agreeing(const DifferenceMix& mix, std::span<std::byte* const> parts, int64_t first, int64_t count,
                  T* mixed, T* divisors) {
  std::array<T, merge_tile> sums{};
  for (size_t k = 0; k < parts.size(); ++k) {
    const T* part = typed<T>(parts[k]) + first;
    const auto weight = static_cast<T>(mix.weights[k]);
    for (int64_t i = 0; i < count; ++i) sums[static_cast<size_t>(i)] += part[i] * weight;
  }
  for (int64_t i = 0; i < count; ++i) {
    T& sum = sums[static_cast<size_t>(i)];
    sum = sum >= 0 ? T{1} : T{-1};
  }
  std::fill_n(mixed, count, T{0});
  std::fill_n(divisors, count, T{0});
  for (size_t k = 0; k < parts.size(); ++k) {
    const T* part = typed<T>(parts[k]) + first;
    const auto weight = static_cast<T>(mix.weights[k]);
    for (int64_t i = 0; i < count; ++i) {
      const T weighted = part[i] * weight;
      const T along = weighted * sums[static_cast<size_t>(i)];  // the sign is a factor: no branches
      mixed[i] += along <= 0 ? T{0} : weighted;                 // NaN stays
      divisors[i] += along <= 0 ? T{0} : weight;
    }
  }
  for (int64_t i = 0; i < count; ++i) divisors[i] = divisors[i] == 0 ? T{1} : divisors[i];
}

template <typename T>
void mix_differences_as(const DifferenceMix& mix, std::span<std::byte* const> parts, const T* base, T* out,
                        int64_t count) {
  constexpr auto negligible = static_cast<T>(1e-8);
  T whole = 0;
  for (const double weight : mix.weights) whole += static_cast<T>(weight);
  if (!mix.is_normalized || std::abs(whole) < negligible) whole = 1;
  const auto factor = static_cast<T>(mix.factor);
  std::array<T, merge_tile> mixed;
  std::array<T, merge_tile> divisors;
  for (int64_t first = 0; first < count; first += merge_tile) {
    const int64_t length = std::min(merge_tile, count - first);
    if (mix.has_consensus) {
      add_agreeing<T>(mix, parts, first, length, mixed.data(), divisors.data());
      if (mix.is_normalized) {
        for (size_t i = 0; i < static_cast<size_t>(length); ++i) mixed[i] /= divisors[i];
      }
    } else {
      std::vector<std::byte*> tile(parts.begin(), parts.end());
      for (std::byte*& part : tile) part += static_cast<size_t>(first) * sizeof(T);
      add_weighted_as<T>(tile, mix.weights, whole, mixed.data(), length);
    }
    for (int64_t i = 0; i < length; ++i)
      out[first + i] = base[first + i] + mixed[static_cast<size_t>(i)] * factor;
  }
}

}  // namespace

void add_weighted(DType dtype, std::span<std::byte* const> parts, std::span<const double> weights,
                  double divisor, std::byte* out, int64_t count) {
  with_float(dtype, [&]<typename T>(std::type_identity<T>) {
    add_weighted_as<T>(parts, weights, static_cast<T>(divisor), typed<T>(out), count);
  });
}

void subtract(DType dtype, std::byte* elements, const std::byte* base, int64_t count) {
  with_float(dtype, [&]<typename T>(std::type_identity<T>) {
    T* numbers = typed<T>(elements);
    const T* others = typed<T>(base);
    for (int64_t i = 0; i < count; ++i) numbers[i] -= others[i];
  });
}

void mix_differences(DType dtype, const DifferenceMix& mix, std::span<std::byte* const> parts,
                     const std::byte* base, std::byte* out, int64_t count) {
  with_float(dtype, [&]<typename T>(std::type_identity<T>) {
    mix_differences_as<T>(mix, parts, typed<T>(base), typed<T>(out), count);
  });
}

void magnitude_bits(DType dtype, const std::byte* elements, uint32_t* out, int64_t count) {
  with_float(dtype, [&]<typename T>(std::type_identity<T>) {
    const T* numbers = typed<T>(elements);
    for (int64_t i = 0; i < count; ++i) out[i] = size_bits(numbers[i]);
  });
}

void keep_largest(DType dtype, uint32_t threshold, int64_t equal, std::byte* elements, int64_t count) {
  with_float(dtype, [&]<typename T>(std::type_identity<T>) {
    T* numbers = typed<T>(elements);
    const auto keep = [&](int64_t first, int64_t last, uint32_t least) {
      for (int64_t i = first; i < last; ++i) {
        const T number = numbers[i];
        numbers[i] = size_bits(number) >= least ? number : T{0};
      }
    };
    const int64_t limit = std::clamp<int64_t>(equal, 0, count);
    keep(0, limit, threshold);
    keep(limit, count, threshold + 1);
  });
}

void keep_random(DType dtype, uint64_t stream, int64_t begin, double density, std::byte* elements,
                 int64_t count) {
  // A number of 53 bits times 2^-53 is below the density.
  const auto limit = static_cast<uint64_t>(std::ceil(std::clamp(density, 0.0, 1.0) * 0x1p53));
  const uint64_t start = stream + static_cast<uint64_t>(begin);
  with_float(dtype, [&]<typename T>(std::type_identity<T>) {
    T* numbers = typed<T>(elements);
    for (int64_t i = 0; i < count; ++i) {
      const T number = numbers[i];
      numbers[i] = scrambled(start + static_cast<uint64_t>(i)) >> 11 < limit ? number : T{0};
    }
  });
}

void count_bits(const uint32_t* bits, int64_t count, int shift, uint32_t* counters, size_t size) {
  int64_t i = 0;
  for (; i + 2 <= count; i += 2) {
    ++counters[bits[i] >> shift];
    ++counters[size + (bits[i + 1] >> shift)];
  }
  if (i < count) ++counters[bits[i] >> shift];
}

Products products_of(DType dtype, const std::byte* a, const std::byte* b, int64_t count) {
  return with_float(dtype, [&]<typename T>(std::type_identity<T>) {
    const T* left = typed<T>(a);
    const T* right = typed<T>(b);
    return Products{lane_sum(count, [&](int64_t i) { return double{left[i]} * double{left[i]}; }),
                    lane_sum(count, [&](int64_t i) { return double{right[i]} * double{right[i]}; }),
                    lane_sum(count, [&](int64_t i) { return double{left[i]} * double{right[i]}; })};
  });
}

double sum_of_sizes(DType dtype, const std::byte* elements, int64_t count) {
  return with_float(dtype, [&]<typename T>(std::type_identity<T>) {
    const T* numbers = typed<T>(elements);
    return lane_sum(count, [&](int64_t i) { return std::abs(double{numbers[i]}); });
  });
}

void multiply_by(DType dtype, std::byte* elements, double factor, int64_t count) {
  with_float(dtype, [&]<typename T>(std::type_identity<T>) {
    T* numbers = typed<T>(elements);
    const auto by = static_cast<T>(factor);
    for (int64_t i = 0; i < count; ++i) numbers[i] *= by;
  });
}

}  // namespace cbk::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cbk {

HWY_EXPORT(add_weighted);
HWY_EXPORT(subtract);
HWY_EXPORT(mix_differences);
HWY_EXPORT(magnitude_bits);
HWY_EXPORT(keep_largest);
HWY_EXPORT(keep_random);
HWY_EXPORT(count_bits);
HWY_EXPORT(products_of);
HWY_EXPORT(sum_of_sizes);
HWY_EXPORT(multiply_by);

void add_weighted(DType dtype, std::span<std::byte* const> parts, std::span<const double> weights,
                  double divisor, std::byte* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(add_weighted)(dtype, parts, weights, divisor, out, count);
}

void subtract(DType dtype, std::byte* elements, const std::byte* base, int64_t count) {
  HWY_DYNAMIC_DISPATCH(subtract)(dtype, elements, base, count);
}

void mix_differences(DType dtype, const DifferenceMix& mix, std::span<std::byte* const> parts,
                     const std::byte* base, std::byte* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(mix_differences)(dtype, mix, parts, base, out, count);
}

void magnitude_bits(DType dtype, const std::byte* elements, uint32_t* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(magnitude_bits)(dtype, elements, out, count);
}

void keep_largest(DType dtype, uint32_t threshold, int64_t equal, std::byte* elements, int64_t count) {
  HWY_DYNAMIC_DISPATCH(keep_largest)(dtype, threshold, equal, elements, count);
}

void keep_random(DType dtype, uint64_t stream, int64_t begin, double density, std::byte* elements,
                 int64_t count) {
  HWY_DYNAMIC_DISPATCH(keep_random)(dtype, stream, begin, density, elements, count);
}

void count_bits(const uint32_t* bits, int64_t count, int shift, uint32_t* counters, size_t size) {
  HWY_DYNAMIC_DISPATCH(count_bits)(bits, count, shift, counters, size);
}

Products products_of(DType dtype, const std::byte* a, const std::byte* b, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(products_of)(dtype, a, b, count);
}

double sum_of_sizes(DType dtype, const std::byte* elements, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(sum_of_sizes)(dtype, elements, count);
}

void multiply_by(DType dtype, std::byte* elements, double factor, int64_t count) {
  HWY_DYNAMIC_DISPATCH(multiply_by)(dtype, elements, factor, count);
}

}  // namespace cbk
#endif
