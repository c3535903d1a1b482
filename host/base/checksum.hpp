// Checksums of bytes, and of concatenated runs of bytes.
#pragma once

#include <cstdint>

#include "host/base/bytes.hpp"

namespace cbk {

/// crc32 is zip's polynomial, crc32c Castagnoli's.
enum class Checksum : uint8_t { none, crc32, crc32c };

/// The checksum of data with the checksum `sum` followed by `bytes`. Empty data has the checksum 0.
uint32_t extended(Checksum kind, uint32_t sum, ByteView bytes);

/// The checksum of two concatenated runs of bytes.
uint32_t combined(Checksum kind, uint32_t first, uint32_t second, uint64_t second_size);

}  // namespace cbk
