// Bytes that are verified against their checksum while they are read.
#pragma once

#include <string>

#include "host/base/checksum.hpp"
#include "host/tensor/storage.hpp"

namespace cbk {

struct ExpectedChecksum {
  Checksum kind = Checksum::crc32;
  uint32_t value = 0;
  std::string_view what;    // "variable", for messages
  std::string name;         // of this one
  std::string_view teller;  // who knows the checksum: "index"
  /// If set, partial reads read all of it (`verify`). Otherwise only a copy does (`verify_whole`), and `view`
  /// shows unverified bytes.
  bool is_strict = false;
};

/// Verification costs one pass over the bytes, for any readers in any order. Ranges that were read once are
/// not read again for the checksum, as long as they do not overlap. Errors while reading: `format`, with the
/// name of the data.
StoragePtr checked_storage(StoragePtr bytes, ExpectedChecksum expected);

}  // namespace cbk
