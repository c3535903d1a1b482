#include "host/tensor/kernels/moments.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "host/base/clones.hpp"

namespace cbk {
namespace {

constexpr size_t lanes = 16;  // sums side by side, for the vector unit
constexpr size_t chunk =
    1024;  // numbers whose sums are joined in a long double: rounding errors grow with it, not with all

using Floats = float __attribute__((vector_size(lanes * sizeof(float))));
using Flags = int32_t __attribute__((vector_size(lanes * sizeof(int32_t))));
using Half = float __attribute__((vector_size(lanes / 2 * sizeof(float))));
using Doubles = double __attribute__((vector_size(lanes / 2 * sizeof(double))));

struct Sums {
  double sum = 0;      // of x − shift
  double squares = 0;  // of (x − shift)²
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
  int64_t small = 0;  // |x| < limit
  bool is_finite = true;
};

/// All of it in one pass. One accumulator for each lane, joined in order at the end: the result is that of
/// any instruction set. Squares of all float32 numbers fit in a double.
CBK_CLONES Sums sums_of(const float* x, size_t count, double shift, float limit) {
  Floats least = Floats{} + std::numeric_limits<float>::infinity();
  Floats most = -least;
  Floats nothing = {};  // 0 · x is 0 for a finite x, else NaN
  Flags small = {};
  Doubles sums[2] = {};
  Doubles squares[2] = {};
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    Floats v;
    std::memcpy(&v, x + i, sizeof v);
    nothing += 0.0F * v;
    least = v < least ? v : least;
    most = v > most ? v : most;
    const Floats size = v < 0.0F ? -v : v;
    small -= size < limit;
    Half halves[2];
    std::memcpy(halves, &v, sizeof v);
    for (size_t h = 0; h < 2; ++h) {
      const Doubles d = __builtin_convertvector(halves[h], Doubles) - shift;
      sums[h] += d;
      squares[h] += d * d;
    }
  }
  Sums out;
  float not_finite = 0;
  for (size_t lane = 0; lane < lanes; ++lane) {
    out.sum += sums[lane / 8][lane % 8];
    out.squares += squares[lane / 8][lane % 8];
    out.least = std::min(out.least, static_cast<double>(least[lane]));
    out.most = std::max(out.most, static_cast<double>(most[lane]));
    out.small += small[lane];
    not_finite += nothing[lane];
  }
  for (; i < count; ++i) {
    const double d = static_cast<double>(x[i]) - shift;
    out.sum += d;
    out.squares += d * d;
    out.least = std::min(out.least, static_cast<double>(x[i]));
    out.most = std::max(out.most, static_cast<double>(x[i]));
    out.small += std::fabs(x[i]) < limit ? 1 : 0;
    not_finite += 0.0F * x[i];
  }
  out.is_finite = not_finite == 0;
  return out;
}

int64_t zeros_in(std::span<const float> numbers) {
  return std::count(numbers.begin(), numbers.end(), 0.0F);
}

/// The moments of finite numbers, or nothing. What is added up is the distance from a number among them.
bool finite_moments(std::span<const float> numbers, double shift, double least_normal, Moments& out) {
  const float limit = std::max(static_cast<float>(least_normal), std::numeric_limits<float>::min());
  long double sum = 0;
  int64_t small = 0;
  for (size_t begin = 0; begin < numbers.size(); begin += chunk) {
    const Sums part = sums_of(numbers.data() + begin, std::min(chunk, numbers.size() - begin), shift, limit);
    if (!part.is_finite) return false;
    sum += part.sum;
    out.squares += part.squares;
    out.min = std::min(out.min, part.least);
    out.max = std::max(out.max, part.most);
    small += part.small;
  }
  out.count = static_cast<int64_t>(numbers.size());
  const auto count = static_cast<long double>(out.count);
  out.mean = shift + sum / count;
  out.squares = std::max(out.squares - sum * sum / count, 0.0L);
  out.zeros = small == 0 ? 0 : zeros_in(numbers);
  out.subnormal = least_normal == 0 ? 0 : small - out.zeros;
  return true;
}

/// A long double holds the squares of all doubles.
bool finite_moments(std::span<const double> numbers, double /*shift*/, double least_normal, Moments& out) {
  if (!std::ranges::all_of(numbers, [](double number) { return std::isfinite(number); })) return false;
  out.count = static_cast<int64_t>(numbers.size());
  for (const double number : numbers) {
    out.mean += number;
    out.min = std::min(out.min, number);
    out.max = std::max(out.max, number);
    if (number == 0) {
      ++out.zeros;
    } else if (std::fabs(number) < least_normal) {
      ++out.subnormal;
    }
  }
  out.mean /= static_cast<long double>(out.count);
  for (const double number : numbers) out.squares += (number - out.mean) * (number - out.mean);
  return true;
}

template <typename T>
void take_out_infinities(Block<T>& block, Moments& out) {
  block.room.clear();
  for (const T number : block.numbers) {
    if (std::isfinite(number)) {
      block.room.push_back(number);
    } else {
      ++(std::isnan(number) ? out.nan : out.inf);
    }
  }
  block.numbers = block.room;
}

template <typename T>
void add(Moments& moments, Block<T>& block, double least_normal) {
  // The mean so far is near the numbers to come.
  const auto shift = [&] {
    return moments.count > 0 ? static_cast<double>(moments.mean) : static_cast<double>(block.numbers.front());
  };
  Moments found;
  if (!block.numbers.empty() && !finite_moments(block.numbers, shift(), least_normal, found)) {
    found = {};
    take_out_infinities(block, found);
    if (!block.numbers.empty()) finite_moments(block.numbers, shift(), least_normal, found);
  }
  moments.merge(found);
}

}  // namespace

void Moments::merge(const Moments& other) {
  nan += other.nan;
  inf += other.inf;
  zeros += other.zeros;
  subnormal += other.subnormal;
  if (other.count == 0) return;
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  const long double delta = other.mean - mean;
  const auto total = static_cast<long double>(count + other.count);
  mean += delta * static_cast<long double>(other.count) / total;
  squares += other.squares +
             delta * delta * static_cast<long double>(count) * static_cast<long double>(other.count) / total;
  count += other.count;
}

void add_block(Moments& moments, Block<float>& block, double least_normal) {
  add(moments, block, least_normal);
}

void add_block(Moments& moments, Block<double>& block, double least_normal) {
  add(moments, block, least_normal);
}

// The bits of a positive float ascend with its value, those of a negative one descend.
size_t counter_of(float number) {
  const auto bits = std::bit_cast<uint32_t>(number + 0.0F);
  return (bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000U)) >> 16;
}

namespace {
CBK_CLONES void counters_of(const float* x, size_t count, uint16_t* out) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint16_t>(counter_of(x[i]));
}
}  // namespace

void count_floats(std::span<const float> numbers, std::span<uint32_t, counter_count> counters) {
  std::array<uint16_t, chunk> chosen;
  for (size_t begin = 0; begin < numbers.size(); begin += chunk) {
    const size_t count = std::min(chunk, numbers.size() - begin);
    counters_of(numbers.data() + begin, count, chosen.data());
    for (size_t i = 0; i < count; ++i) ++counters[chosen[i]];
  }
}

float counter_begin(size_t counter) {
  const auto flipped = static_cast<uint32_t>(counter << 16);
  const auto number = std::bit_cast<float>((flipped & 0x80000000U) != 0 ? flipped ^ 0x80000000U : ~flipped);
  // What is below all float32 numbers shares a counter with the bits of NaN.
  return std::isnan(number) ? -std::numeric_limits<float>::infinity() : number;
}

float floor_to_float(double number) {
  const auto rounded = static_cast<float>(number);
  if (static_cast<double>(rounded) <= number) return rounded;
  return std::nextafter(rounded, -std::numeric_limits<float>::infinity());
}

}  // namespace cbk
