#include "host/formats/pickle/long_integer.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "host/base/error.hpp"

namespace cbk::pickle {
namespace {

constexpr uint32_t chunk_base = 1'000'000'000;  // nine decimal digits at a time
constexpr int chunk_digits = 9;

using Limbs = std::vector<uint32_t>;  // little-endian

void negate(std::string& bytes) {
  unsigned carry = 1;
  for (char& byte : bytes) {
    carry += static_cast<uint8_t>(~static_cast<uint8_t>(byte));
    byte = static_cast<char>(carry & 0xff);
    carry >>= 8;
  }
}

std::string decimal_of(Limbs limbs) {
  std::vector<uint32_t> chunks;
  while (!limbs.empty()) {
    uint64_t remainder = 0;
    for (size_t i = limbs.size(); i-- > 0;) {
      const uint64_t dividend = remainder << 32 | limbs[i];
      limbs[i] = static_cast<uint32_t>(dividend / chunk_base);
      remainder = dividend % chunk_base;
    }
    chunks.push_back(static_cast<uint32_t>(remainder));
    while (!limbs.empty() && limbs.back() == 0) limbs.pop_back();
  }
  std::string digits = chunks.empty() ? "0" : std::to_string(chunks.back());
  for (size_t i = chunks.size(); i-- > 1;) digits += fmt::format("{:09}", chunks[i - 1]);
  return digits;
}

std::string magnitude_of(std::string_view digits) {
  Limbs limbs;
  for (size_t at = 0; at < digits.size();) {
    const size_t count = std::min<size_t>(chunk_digits, digits.size() - at);
    uint64_t factor = 1;
    uint64_t carry = 0;
    for (size_t i = 0; i < count; ++i) {
      const char digit = digits[at + i];
      if (digit < '0' || digit > '9') fail(Errc::value, "{} is not a whole number", quote(digits));
      factor *= 10;
      carry = carry * 10 + static_cast<uint64_t>(digit - '0');
    }
    for (uint32_t& limb : limbs) {
      carry += limb * factor;
      limb = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    if (carry != 0) limbs.push_back(static_cast<uint32_t>(carry));
    at += count;
  }
  std::string bytes(limbs.size() * sizeof(uint32_t), '\0');
  if (!limbs.empty()) std::memcpy(bytes.data(), limbs.data(), bytes.size());
  return bytes;
}

/// Drops high bytes that only repeat the sign.
void shorten(std::string& bytes) {
  while (!bytes.empty()) {
    const auto last = static_cast<uint8_t>(bytes.back());
    const bool below_is_negative = bytes.size() > 1 && static_cast<uint8_t>(bytes[bytes.size() - 2]) >= 0x80;
    if ((last != 0 || below_is_negative) && (last != 0xff || !below_is_negative)) break;
    bytes.pop_back();
  }
}

}  // namespace

Value decode_long(std::string_view bytes) {
  if (bytes.empty()) return 0;
  if (bytes.size() > long_integer_limit) {
    fail(Errc::format, "a whole number of {} bytes; the limit is {}", bytes.size(), long_integer_limit);
  }
  const bool is_negative = static_cast<uint8_t>(bytes.back()) >= 0x80;
  if (bytes.size() <= sizeof(int64_t)) {
    uint64_t number = is_negative ? ~uint64_t{0} : 0;
    std::memcpy(&number, bytes.data(), bytes.size());
    return static_cast<int64_t>(number);
  }
  std::string magnitude(bytes);
  if (is_negative) negate(magnitude);
  magnitude.resize((magnitude.size() + 3) / 4 * 4, '\0');
  Limbs limbs(magnitude.size() / 4);
  std::memcpy(limbs.data(), magnitude.data(), magnitude.size());
  while (!limbs.empty() && limbs.back() == 0) limbs.pop_back();
  return Value::integer((is_negative ? "-" : "") + decimal_of(std::move(limbs)));
}

std::string encode_long(const Integer& integer) {
  std::string bytes;
  if (integer.fits) {
    bytes.assign(reinterpret_cast<const char*>(&integer.value), sizeof integer.value);
  } else {
    const bool is_negative = integer.digits->starts_with('-');
    bytes = magnitude_of(std::string_view(*integer.digits).substr(is_negative ? 1 : 0)) + '\0';
    if (is_negative) negate(bytes);
  }
  shorten(bytes);
  return bytes;
}

}  // namespace cbk::pickle
