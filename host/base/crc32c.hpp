// CRC-32C (Castagnoli), the checksum of LevelDB's tables and TensorFlow's bundles.
#pragma once

#include <optional>

#include "host/base/bytes.hpp"

namespace cbk {

/// The checksum of `bytes`, or of data with the checksum `before` followed by `bytes`.
uint32_t crc32c(ByteView bytes, uint32_t before = 0);

/// The checksum of two concatenated runs of bytes, from the checksum of each.
uint32_t crc32c_combine(uint32_t first, uint32_t second, uint64_t second_size);

/// The form in which LevelDB and TensorFlow store a checksum, so that a checksum over data with checksums
/// stays useful.
uint32_t masked_crc32c(uint32_t crc);
uint32_t unmasked_crc32c(uint32_t masked);

/// The position of one wrong byte in `bytes` with the checksum `crc`, and its right value. For larger damage
/// an answer is possible but unlikely.
struct WrongByte {
  size_t position;
  std::byte right;
};
std::optional<WrongByte> find_wrong_byte(ByteView bytes, uint32_t crc);

}  // namespace cbk
