// Floats narrower than 32 bits, as PyTorch rounds them: to nearest, ties to even.
// Formats: IEEE 754 half; bfloat16 (upper half of a float32); OCP 8-bit floats E4M3, E5M2, E8M0 and the FNUZ
// variants.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace cbk {

inline float bfloat16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? 0x7fc0U : rounded);
}

inline float half_to_float(uint16_t bits) {
  // The exponent is moved by multiplying with 2^112; infinities and NaNs get their exponent set.
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffU) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * std::bit_cast<float>(0x77800000U);
  auto result = std::bit_cast<uint32_t>(scaled);
  result |= (bits & 0x7c00U) == 0x7c00U ? 0x7f800000U : 0U;
  return std::bit_cast<float>(result | static_cast<uint32_t>(bits & 0x8000U) << 16);
}

inline uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  // Normal halves: rebias and round in integers. Subnormal ones: adding 0.5 lets the float unit round at the
  // right bit.
  const uint32_t normal = (magnitude + 0xc8000fffU + ((magnitude >> 13) & 1U)) >> 13;
  const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
  const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - 0x3f000000U;
  uint32_t result = magnitude < 0x38800000U ? subnormal : normal;
  result = magnitude >= 0x477ff000U ? 0x7c00U : result;
  result = magnitude > 0x7f800000U ? 0x7e00U : result;
  return static_cast<uint16_t>(sign | result);
}

/// An 8-bit float; `max_code` is the largest finite magnitude, and codes above it are infinity or NaN.
struct Float8 {
  int mantissa_bits;
  int bias;
  bool has_infinity;  // E5M2
  bool fnuz;          // no negative zero: 0x80 is NaN
  uint8_t nan;
  uint8_t max_code;
};
inline constexpr Float8 e4m3fn = {3, 7, false, false, 0x7f, 0x7e};
inline constexpr Float8 e5m2 = {2, 15, true, false, 0x7f, 0x7b};
inline constexpr Float8 e4m3fnuz = {3, 8, false, true, 0x80, 0x7f};
inline constexpr Float8 e5m2fnuz = {2, 16, false, true, 0x80, 0x7f};

inline float float8_to_float(uint8_t bits, const Float8& format) {
  // Masks in place of branches, so that loops vectorise. The exponent is moved. A subnormal code gets the
  // least exponent, whose implied one is then subtracted.
  const auto mask_if = [](bool condition) { return 0U - static_cast<uint32_t>(condition); };
  const uint32_t magnitude = bits & 0x7fU;
  const uint32_t is_subnormal = mask_if(magnitude < 1U << format.mantissa_bits);
  const auto least = static_cast<uint32_t>(128 - format.bias) << 23;
  const uint32_t moved =
      (magnitude << (23 - format.mantissa_bits)) + (static_cast<uint32_t>(127 - format.bias) << 23);
  const auto with_one = std::bit_cast<float>(moved + (is_subnormal & 1U << 23));
  const auto number = std::bit_cast<uint32_t>(with_one - std::bit_cast<float>(is_subnormal & least));
  const uint32_t is_infinity = mask_if(format.has_infinity) & mask_if(magnitude == format.max_code + 1U);
  const uint32_t is_beyond =
      mask_if(magnitude > format.max_code) | (mask_if(format.fnuz) & mask_if(bits == 0x80));
  const uint32_t beyond = 0x7f800000U | (~is_infinity & 0x00400000U);
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80U) << 24 & (~is_beyond | is_infinity);
  return std::bit_cast<float>((number & ~is_beyond) | (beyond & is_beyond) | sign);
}

inline uint8_t float_to_float8(float value, const Float8& format) {
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return format.fnuz ? format.nan : static_cast<uint8_t>(sign | format.nan);
  const auto overflow = static_cast<uint8_t>(format.has_infinity ? sign | (format.max_code + 1)
                                             : format.fnuz       ? format.nan
                                                                 : sign | format.nan);
  if (std::isinf(value)) return overflow;
  const float magnitude = std::fabs(value);
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  // The unit in the last place of the binade that the value falls into; subnormals share the lowest.
  const int lowest = 1 - format.bias - format.mantissa_bits;
  const int unit = magnitude == 0 ? lowest : std::max(exponent - 1 - format.mantissa_bits, lowest);
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -unit)));
  const int code = steps + ((unit - lowest) << format.mantissa_bits);
  if (code > format.max_code) return overflow;
  return code == 0 && format.fnuz ? 0 : static_cast<uint8_t>(sign | code);
}

/// E8M0: a power of two, 2^(code - 127); 0xff is NaN.
inline float e8m0_to_float(uint8_t bits) {
  const uint32_t power = bits == 0 ? 0x00400000U : static_cast<uint32_t>(bits) << 23;  // 2^-127 is subnormal
  return std::bit_cast<float>(bits == 0xff ? 0x7fc00000U : power);
}

inline uint8_t float_to_e8m0(float value) {
  if (std::isnan(value) || std::isinf(value)) return 0xff;
  if (!(value > 0)) return 0;
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);  // [0.5, 1)
  int code = exponent - 1 + 127;
  if (fraction > 0.75F || (fraction == 0.75F && (code & 1) != 0)) ++code;  // ties to the even code
  return static_cast<uint8_t>(std::clamp(code, 0, 254));
}

}  // namespace cbk
