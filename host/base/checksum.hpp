// Checksums of runs of bytes, and of runs one behind the other.
#pragma once

#include <cstdint>

#include "host/base/bytes.hpp"

namespace cbk {

/// crc32 is zip's polynomial, crc32c Castagnoli's.
enum class Checksum : uint8_t { none, crc32, crc32c };

/// Of what has the checksum `sum`, followed by `bytes`; nothing has the checksum 0.
uint32_t extended(Checksum kind, uint32_t sum, ByteView bytes);

/// Of two runs of bytes, one behind the other.
uint32_t combined(Checksum kind, uint32_t first, uint32_t second, uint64_t second_size);

}  // namespace cbk
