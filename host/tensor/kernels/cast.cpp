#include "host/tensor/kernels/cast.hpp"

#include <array>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "host/base/error.hpp"
#include "host/tensor/kernels/small_float.hpp"

namespace cbk {
namespace {

/// How one dtype is stored (`Bits`) and computed with (`Number`).
template <DType dtype>
struct Element;

template <typename T>
struct Plain {
  using Bits = T;
  using Number = T;
  static Number decode(Bits bits) { return bits; }
  static Bits encode(Number number) { return number; }
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
struct Element<DType::float32> : Plain<float> {};
template <>
struct Element<DType::float64> : Plain<double> {};
template <>
struct Element<DType::complex64> : Plain<std::complex<float>> {};
template <>
struct Element<DType::complex128> : Plain<std::complex<double>> {};

template <typename Stored, float (*to_number)(Stored), Stored (*to_bits)(float)>
struct Narrow {
  using Bits = Stored;
  using Number = float;
  static Number decode(Bits bits) { return to_number(bits); }
  static Bits encode(Number number) { return to_bits(number); }
};
template <>
struct Element<DType::float16> : Narrow<uint16_t, half_to_float, float_to_half> {};
template <>
struct Element<DType::bfloat16> : Narrow<uint16_t, bfloat16_to_float, float_to_bfloat16> {};
template <>
struct Element<DType::float8_e8m0fnu> : Narrow<uint8_t, e8m0_to_float, float_to_e8m0> {};

template <const Float8& format>
struct Eight {
  using Bits = uint8_t;
  using Number = float;
  static Number decode(Bits bits) { return float8_to_float(bits, format); }
  static Bits encode(Number number) { return float_to_float8(number, format); }
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
    // 2^63 as a float lies beyond int64's maximum, hence >=.
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

template <DType from, DType to>
void cast_loop(const std::byte* source, std::byte* out, int64_t count) {
  using From = Element<from>;
  using To = Element<to>;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    typename From::Bits bits;
    std::memcpy(&bits, source + i * sizeof bits, sizeof bits);
    const typename To::Bits result = To::encode(convert<typename To::Number>(From::decode(bits)));
    std::memcpy(out + i * sizeof result, &result, sizeof result);
  }
}

using CastLoop = void (*)(const std::byte*, std::byte*, int64_t);
using CastRow = std::array<CastLoop, dtype_count>;

template <size_t from, size_t to>
constexpr CastLoop loop_for() {
  if constexpr (castable<static_cast<DType>(from), static_cast<DType>(to)>) {
    return &cast_loop<static_cast<DType>(from), static_cast<DType>(to)>;
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

constexpr auto loops = table_of(std::make_index_sequence<dtype_count>{});

CastLoop find_loop(DType from, DType to) {
  return loops.at(static_cast<size_t>(from)).at(static_cast<size_t>(to));
}

}  // namespace

void check_cast(DType from, DType to) {
  if (find_loop(from, to) == nullptr) {
    fail(Errc::dtype, "cannot cast {} to {}: complex numbers cast only to complex numbers", name_of(from),
         name_of(to));
  }
}

void cast_elements(DType from, const std::byte* source, DType to, std::byte* out, int64_t count) {
  if (from == to) {
    std::memcpy(out, source, static_cast<size_t>(count) * size_of(from));
    return;
  }
  check_cast(from, to);
  find_loop(from, to)(source, out, count);
}

}  // namespace cbk
