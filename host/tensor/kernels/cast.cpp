#include "host/tensor/kernels/cast.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "host/base/clones.hpp"
#include "host/base/error.hpp"
#include "host/tensor/kernels/small_float.hpp"
#include "host/tensor/kernels/to_bfloat16.hpp"

namespace cbk {
namespace {

/// The stored form (`Bits`) and the computed form (`Number`) of a dtype. `is_finite` and `is_zero` test the
/// bits, which vectorises well.
template <DType dtype>
struct Element;

template <typename T>
struct Plain {
  using Bits = T;
  using Number = T;
  static Number decode(Bits bits) { return bits; }
  static Bits encode(Number number) { return number; }
  static bool is_finite(Bits /*bits*/) { return true; }
  static bool is_zero(Bits bits) { return bits == 0; }
};

/// A float whose bits are `Unsigned`; an exponent of all ones is infinite or NaN.
template <typename Float, typename Unsigned, Unsigned exponent>
struct PlainFloat {
  using Bits = Float;
  using Number = Float;
  static Number decode(Bits bits) { return bits; }
  static Bits encode(Number number) { return number; }
  static bool is_finite(Bits bits) { return (std::bit_cast<Unsigned>(bits) & exponent) != exponent; }
  static bool is_zero(Bits bits) { return bits == 0; }
};

template <typename Part>
struct Complex {
  using Bits = std::complex<typename Part::Number>;
  using Number = Bits;
  static Number decode(Bits bits) { return bits; }
  static Bits encode(Number number) { return number; }
  static bool is_finite(Bits bits) { return Part::is_finite(bits.real()) && Part::is_finite(bits.imag()); }
  static bool is_zero(Bits bits) { return bits == Bits{}; }
};

template <>
struct Element<DType::boolean> {
  using Bits = uint8_t;
  using Number = bool;
  static Number decode(Bits bits) { return bits != 0; }
  static Bits encode(Number number) { return number ? 1 : 0; }
};
template <>
struct Element<DType::uint8> : Plain<uint8_t> {};
template <>
struct Element<DType::int8> : Plain<int8_t> {};
template <>
struct Element<DType::uint16> : Plain<uint16_t> {};
template <>
struct Element<DType::int16> : Plain<int16_t> {};
template <>
struct Element<DType::uint32> : Plain<uint32_t> {};
template <>
struct Element<DType::int32> : Plain<int32_t> {};
template <>
struct Element<DType::uint64> : Plain<uint64_t> {};
template <>
struct Element<DType::int64> : Plain<int64_t> {};
template <>
struct Element<DType::float32> : PlainFloat<float, uint32_t, 0x7f800000> {};
template <>
struct Element<DType::float64> : PlainFloat<double, uint64_t, 0x7ff0000000000000> {};
template <>
struct Element<DType::complex64> : Complex<Element<DType::float32>> {};
template <>
struct Element<DType::complex128> : Complex<Element<DType::float64>> {};

/// Magnitudes of float32, as bits, from `first_infinite` on become infinite, and up to `last_zero` 0.
template <float (*to_number)(uint16_t), uint16_t (*to_bits)(float), uint16_t exponent, int32_t infinite,
          int32_t zero>
struct Sixteen {
  static constexpr int32_t first_infinite = infinite;
  static constexpr int32_t last_zero = zero;
  using Bits = uint16_t;
  using Number = float;
  static Number decode(Bits bits) { return to_number(bits); }
  static Bits encode(Number number) { return to_bits(number); }
  static bool is_finite(Bits bits) { return (bits & exponent) != exponent; }
  static bool is_zero(Bits bits) { return (bits & 0x7fff) == 0; }
};
template <>
struct Element<DType::float16> : Sixteen<half_to_float, float_to_half, 0x7c00, 0x477ff000, 0x33000000> {};
template <>
struct Element<DType::bfloat16> : Sixteen<bfloat16_to_float, float_to_bfloat16, 0x7f80, 0x7f7f8000, 0x8000> {
};

template <>
struct Element<DType::float8_e8m0fnu> {
  using Bits = uint8_t;
  using Number = float;
  static Number decode(Bits bits) { return e8m0_to_float(bits); }
  static Bits encode(Number number) { return float_to_e8m0(number); }
  static bool is_finite(Bits bits) { return bits != 0xff; }
  static bool is_zero(Bits /*bits*/) { return false; }
};

template <const Float8& format>
struct Eight {
  using Bits = uint8_t;
  using Number = float;
  static Number decode(Bits bits) { return float8_to_float(bits, format); }
  static Bits encode(Number number) { return float_to_float8(number, format); }
  static bool is_finite(Bits bits) {
    return (bits & 0x7f) <= format.max_code && !(format.fnuz && bits == 0x80);
  }
  static bool is_zero(Bits bits) { return (bits & 0x7f) == 0 && is_finite(bits); }
};
template <>
struct Element<DType::float8_e4m3fn> : Eight<e4m3fn> {};
template <>
struct Element<DType::float8_e5m2> : Eight<e5m2> {};
template <>
struct Element<DType::float8_e4m3fnuz> : Eight<e4m3fnuz> {};
template <>
struct Element<DType::float8_e5m2fnuz> : Eight<e5m2fnuz> {};

template <typename To, typename From>
To convert(From value) {
  if constexpr (std::is_same_v<To, bool>) {
    return value != From{};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if (std::isnan(value)) return 0;
    // 2^63 as a float is beyond int64's maximum, hence >=.
    if (value >= static_cast<From>(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
    if (value <= static_cast<From>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

template <typename T>
constexpr bool is_complex_number =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

template <DType from, DType to>
constexpr bool castable =
    is_complex_number<typename Element<from>::Number> == is_complex_number<typename Element<to>::Number>;

/// Whether `result` is exactly `value`.
template <typename To, typename From>
bool is_same_number(From value, To result) {
  if constexpr (std::is_floating_point_v<From>) {
    // The largest integer may round up to a float that it is not.
    return static_cast<From>(result) == value && value < std::ldexp(From{1}, std::numeric_limits<To>::digits);
  } else {
    return std::cmp_equal(value, result);
  }
}

/// The possible effect of a cast on numbers, from its dtypes alone.
enum class Risk { none, overflow, change };

template <DType from, DType to>
constexpr Risk risk_of() {
  using From = typename Element<from>::Number;
  using To = typename Element<to>::Number;
  if constexpr (std::is_same_v<From, bool> || std::is_same_v<To, bool>) {
    return Risk::none;
  } else if constexpr (std::is_integral_v<To> && std::is_integral_v<From>) {
    const bool is_within = std::in_range<To>(std::numeric_limits<From>::min()) &&
                           std::in_range<To>(std::numeric_limits<From>::max());
    return is_within ? Risk::none : Risk::change;
  } else if constexpr (std::is_integral_v<To>) {
    return Risk::change;
  } else {
    // A wider float holds every number, except those of the widest 8-bit float.
    const bool is_wider = sizeof(typename Element<to>::Bits) > sizeof(typename Element<from>::Bits);
    return is_wider && from != DType::float8_e8m0fnu ? Risk::none : Risk::overflow;
  }
}

template <DType to>
constexpr bool is_sixteen = to == DType::float16 || to == DType::bfloat16;

/// Elements whose losses are counted in the width of an element: one counter per lane.
constexpr int64_t counted_chunk = 4096;

template <DType from, DType to>
inline __attribute__((always_inline)) Losses cast_loop(const std::byte* source, std::byte* out,
                                                       int64_t count) {
  using From = Element<from>;
  using To = Element<to>;
  constexpr Risk risk = risk_of<from, to>();
  Losses lost;
  for (int64_t first = 0; first < count; first += counted_chunk) {
    const auto end = static_cast<size_t>(std::min(first + counted_chunk, count));
    uint32_t overflowed = 0;
    uint32_t changed = 0;
    uint32_t vanished = 0;
    for (auto i = static_cast<size_t>(first); i < end; ++i) {
      typename From::Bits bits;
      std::memcpy(&bits, source + i * sizeof bits, sizeof bits);
      const auto number = From::decode(bits);
      const auto converted = convert<typename To::Number>(number);
      const typename To::Bits result = To::encode(converted);
      std::memcpy(out + i * sizeof result, &result, sizeof result);
      if constexpr (risk == Risk::overflow && is_sixteen<to> &&
                    std::is_same_v<decltype(number), const float>) {
        // All in 32 bits: with counters of another width the loop takes twice the time.
        const auto magnitude = static_cast<int32_t>(std::bit_cast<uint32_t>(number) & 0x7fffffffU);
        overflowed += static_cast<uint32_t>((magnitude >= To::first_infinite) & (magnitude < 0x7f800000));
        vanished += static_cast<uint32_t>((magnitude <= To::last_zero) & (magnitude != 0));
      } else if constexpr (risk == Risk::overflow) {
        overflowed += uint32_t{From::is_finite(bits)} & uint32_t{!To::is_finite(result)};
        vanished += uint32_t{!From::is_zero(bits)} & uint32_t{To::is_zero(result)};
      } else if constexpr (risk == Risk::change) {
        changed += static_cast<uint32_t>(!is_same_number(number, converted));
      }
    }
    lost += {overflowed, changed, vanished};
  }
  return lost;
}

// The casts of weights, for the best instruction set: templates cannot be cloned for several.
CBK_CLONES Losses widen_e4m3fn(const std::byte* source, std::byte* out, int64_t count) {
  return cast_loop<DType::float8_e4m3fn, DType::float32>(source, out, count);
}
CBK_CLONES Losses widen_e5m2(const std::byte* source, std::byte* out, int64_t count) {
  return cast_loop<DType::float8_e5m2, DType::float32>(source, out, count);
}
CBK_CLONES Losses widen_int8(const std::byte* source, std::byte* out, int64_t count) {
  return cast_loop<DType::int8, DType::float32>(source, out, count);
}
CBK_CLONES Losses widen_half(const std::byte* source, std::byte* out, int64_t count) {
  return cast_loop<DType::float16, DType::float32>(source, out, count);
}
CBK_CLONES Losses widen_bfloat16(const std::byte* source, std::byte* out, int64_t count) {
  return cast_loop<DType::bfloat16, DType::float32>(source, out, count);
}
CBK_CLONES Losses narrow_to_half(const std::byte* source, std::byte* out, int64_t count) {
  return cast_loop<DType::float32, DType::float16>(source, out, count);
}

template <DType from, DType to>
Losses plain_loop(const std::byte* source, std::byte* out, int64_t count) {
  return cast_loop<from, to>(source, out, count);
}

using CastLoop = Losses (*)(const std::byte*, std::byte*, int64_t);
using CastRow = std::array<CastLoop, dtype_count>;

template <size_t from, size_t to>
constexpr CastLoop loop_for() {
  if constexpr (castable<static_cast<DType>(from), static_cast<DType>(to)>) {
    return &plain_loop<static_cast<DType>(from), static_cast<DType>(to)>;
  } else {
    return nullptr;
  }
}

template <size_t from, size_t... to>
constexpr CastRow row_of(std::index_sequence<to...> /*unused*/) {
  return {loop_for<from, to>()...};
}

template <size_t... from>
constexpr std::array<CastRow, dtype_count> table_of(std::index_sequence<from...> all) {
  return {row_of<from>(all)...};
}

constexpr auto cast_loops = table_of(std::make_index_sequence<dtype_count>{});

CastLoop find_loop(DType from, DType to) {
  if (to == DType::float32) {
    if (from == DType::float8_e4m3fn) return &widen_e4m3fn;
    if (from == DType::float8_e5m2) return &widen_e5m2;
    if (from == DType::int8) return &widen_int8;
    if (from == DType::float16) return &widen_half;
    if (from == DType::bfloat16) return &widen_bfloat16;
  } else if (from == DType::float32) {
    if (to == DType::float16) return &narrow_to_half;
    if (to == DType::bfloat16) return &to_bfloat16;
  }
  return cast_loops.at(static_cast<size_t>(from)).at(static_cast<size_t>(to));
}

}  // namespace

void check_cast(DType from, DType to) {
  if (find_loop(from, to) == nullptr) {
    fail(Errc::dtype, "cannot cast {} to {}: complex numbers cast only to complex numbers", name_of(from),
         name_of(to));
  }
}

Losses cast_elements(DType from, const std::byte* source, DType to, std::byte* out, int64_t count) {
  if (count == 0) return {};  // maybe of no memory, which memcpy must not see
  if (from == to) {
    std::memcpy(out, source, static_cast<size_t>(count) * size_of(from));
    return {};
  }
  check_cast(from, to);
  return find_loop(from, to)(source, out, count);
}

}  // namespace cbk
