// CRC-32C (Castagnoli), the checksum of LevelDB's tables and TensorFlow's bundles.
#pragma once

#include <optional>

#include "host/base/bytes.hpp"

namespace cbk {

/// Of `bytes`, or of what has the checksum `before` followed by `bytes`.
uint32_t crc32c(ByteView bytes, uint32_t before = 0);

/// Of two runs of bytes, one after the other, from the checksum of each.
uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_size);

/// The form in which LevelDB and TensorFlow store a checksum, so that one over data with checksums stays
/// good.
uint32_t masked_crc32c(uint32_t crc);
uint32_t unmasked_crc32c(uint32_t masked);

/// Where `bytes`, whose checksum should be `crc`, have one byte that is wrong, and what it should be. An
/// answer for larger damage is possible, but unlikely.
struct WrongByte {
  size_t position;
  std::byte right;
};
std::optional<WrongByte> find_wrong_byte(ByteView bytes, uint32_t crc);

}  // namespace cbk
