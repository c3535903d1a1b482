#include "host/tensor/kernels/finite.hpp"

#include <algorithm>
#include <cstring>

#include "host/base/clones.hpp"

namespace cbk {
namespace {

constexpr int64_t tested_together = 4096;

template <typename Bits>
inline bool matches(const std::byte* numbers, int64_t place, Bits mask, Bits pattern) {
  Bits bits = 0;
  std::memcpy(&bits, numbers + static_cast<size_t>(place) * sizeof(Bits), sizeof(Bits));
  return (bits & mask) == pattern;
}

template <typename Bits>
inline bool any_of(const std::byte* numbers, int64_t count, Bits mask, Bits pattern) {
  Bits any = 0;  // as wide as the numbers: the vectoriser likes that
  for (int64_t i = 0; i < count; ++i) any |= matches(numbers, i, mask, pattern) ? Bits{1} : Bits{0};
  return any != 0;
}
CBK_CLONES bool any_match(const std::byte* numbers, int64_t count, uint8_t mask, uint8_t pattern) {
  return any_of(numbers, count, mask, pattern);
}
CBK_CLONES bool any_match(const std::byte* numbers, int64_t count, uint16_t mask, uint16_t pattern) {
  return any_of(numbers, count, mask, pattern);
}
CBK_CLONES bool any_match(const std::byte* numbers, int64_t count, uint32_t mask, uint32_t pattern) {
  return any_of(numbers, count, mask, pattern);
}
CBK_CLONES bool any_match(const std::byte* numbers, int64_t count, uint64_t mask, uint64_t pattern) {
  return any_of(numbers, count, mask, pattern);
}

/// The first number with `pattern` as its bits under `mask`, or -1.
template <typename Bits>
int64_t first_match(const std::byte* numbers, int64_t count, Bits mask, Bits pattern) {
  for (int64_t first = 0; first < count; first += tested_together) {
    const int64_t end = std::min(first + tested_together, count);
    if (!any_match(numbers + static_cast<size_t>(first) * sizeof(Bits), end - first, mask, pattern)) continue;
    for (int64_t i = first; i < end; ++i) {
      if (matches(numbers, i, mask, pattern)) return i;
    }
  }
  return -1;
}

/// The first position at which all bits of `mask` are set.
template <typename Bits>
int64_t first_with(const std::byte* numbers, int64_t count, Bits mask) {
  return first_match<Bits>(numbers, count, mask, mask);
}

}  // namespace

int64_t first_not_finite(DType dtype, const std::byte* elements, int64_t count) {
  const auto whole = [](int64_t part) { return part < 0 ? part : part / 2; };  // of two numbers
  switch (dtype) {
    case DType::float8_e4m3fn:
      return first_with<uint8_t>(elements, count, 0x7f);
    case DType::float8_e5m2:
      return first_with<uint8_t>(elements, count, 0x7c);
    case DType::float8_e4m3fnuz:
    case DType::float8_e5m2fnuz:
      return first_match<uint8_t>(elements, count, 0xff, 0x80);
    case DType::float8_e8m0fnu:
      return first_with<uint8_t>(elements, count, 0xff);
    case DType::float16:
      return first_with<uint16_t>(elements, count, 0x7c00);
    case DType::bfloat16:
      return first_with<uint16_t>(elements, count, 0x7f80);
    case DType::float32:
      return first_with<uint32_t>(elements, count, 0x7f800000);
    case DType::float64:
      return first_with<uint64_t>(elements, count, 0x7ff0000000000000);
    case DType::complex64:
      return whole(first_with<uint32_t>(elements, 2 * count, 0x7f800000));
    case DType::complex128:
      return whole(first_with<uint64_t>(elements, 2 * count, 0x7ff0000000000000));
    default:
      return -1;
  }
}

}  // namespace cbk
