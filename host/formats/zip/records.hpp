// Signatures, sizes and offsets of the zip records, shared by reader and writer.
#pragma once

#include <cstdint>

namespace cbk::zip {

inline constexpr uint32_t local_signature = 0x04034b50;
inline constexpr uint32_t central_signature = 0x02014b50;
inline constexpr uint32_t end_signature = 0x06054b50;
inline constexpr uint32_t end64_signature = 0x06064b50;
inline constexpr uint32_t locator64_signature = 0x07064b50;

inline constexpr uint64_t local_size = 30;
inline constexpr uint64_t local_method = 8;        // where it is in the local header
inline constexpr uint64_t local_crc = 14;          // the same
inline constexpr uint64_t local_name_length = 26;  // the same
inline constexpr uint64_t central_size = 46;
inline constexpr uint64_t end_size = 22;
inline constexpr uint64_t end64_size = 56;
inline constexpr uint64_t end64_head = 12;  // signature and the size of what follows the size
inline constexpr uint64_t locator64_size = 20;

inline constexpr uint32_t in_zip64 = 0xffffffff;  // a 32-bit field with its value in the zip64 extra field
inline constexpr uint16_t counted_in_zip64 = 0xffff;  // the same for the count of members
inline constexpr uint16_t zip64_extra = 0x0001;
inline constexpr uint16_t padding_extra = 0x4246;  // "FB": torch aligns data with it

inline constexpr uint16_t has_descriptor = 8;  // a flag: checksum and sizes follow the data

inline constexpr uint16_t stored = 0;
inline constexpr uint16_t deflated = 8;

}  // namespace cbk::zip
