#include "host/base/crc32c.hpp"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>

namespace cbk {
namespace {

// Polynomials over GF(2) modulo Castagnoli's; bit 31 is the coefficient of x^0.
constexpr uint32_t polynomial = 0x82F63B78;
constexpr uint32_t one = 0x80000000;

constexpr uint32_t times_x(uint32_t a) {
  return (a & 1) != 0 ? a >> 1 ^ polynomial : a >> 1;
}

constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = one; bit != 0; bit >>= 1, b = times_x(b)) {
    if ((a & bit) != 0) product ^= b;
  }
  return product;
}

/// x^8, x^16, x^32, …: the effect of 1, 2, 4, … further bytes on a checksum.
constexpr auto byte_powers = [] {
  std::array<uint32_t, 64> powers{};
  powers[0] = one >> 8;
  for (size_t i = 1; i < powers.size(); ++i) powers[i] = multiply(powers[i - 1], powers[i - 1]);
  return powers;
}();

/// The checksum's change by one byte, and from its top byte back to that byte.
struct ByteTable {
  std::array<uint32_t, 256> change{};
  std::array<uint8_t, 256> byte_of_top{};
};
constexpr ByteTable byte_table = [] {
  ByteTable table;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = times_x(value);
    table.change[byte] = value;
    table.byte_of_top[value >> 24] = static_cast<uint8_t>(byte);
  }
  return table;
}();

}  // namespace

uint32_t crc32c(ByteView bytes, uint32_t before) {
  constexpr size_t most = 1U << 30;  // the library counts in int
  uint32_t state = ~before;
  while (!bytes.empty()) {
    const ByteView part = bytes.first(std::min(bytes.size(), most));
    // The function takes no pointer to const, but does not write.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(part.data()));
    state = crc32_iscsi(data, static_cast<int>(part.size()), state);
    bytes = bytes.subspan(part.size());
  }
  return ~state;
}

uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_size) {
  for (size_t i = 0; second_size != 0; ++i, second_size >>= 1) {
    if ((second_size & 1) != 0) first = multiply(byte_powers[i], first);
  }
  return first ^ second;
}

uint32_t masked_crc32c(uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8U;
}

uint32_t unmasked_crc32c(uint32_t masked) {
  return std::rotl(masked - 0xa282ead8U, 15);
}

std::optional<WrongByte> find_wrong_byte(ByteView bytes, uint32_t crc) {
  // The checksum is linear: the difference of two checksums depends only on the difference of the bytes. It
  // is traced back byte by byte from the end until a single byte explains it.
  uint32_t difference = crc32c(bytes) ^ crc;
  if (difference == 0) return std::nullopt;
  for (size_t position = bytes.size(); position-- > 0;) {
    const uint8_t byte = byte_table.byte_of_top[difference >> 24];
    if (byte_table.change[byte] == difference) return WrongByte{position, bytes[position] ^ std::byte{byte}};
    difference = (difference ^ byte_table.change[byte]) << 8 | byte;
  }
  return std::nullopt;
}

}  // namespace cbk
