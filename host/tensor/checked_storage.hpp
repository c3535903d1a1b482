// Bytes that are compared with their checksum while they are read.
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
  /// Whoever reads a part reads all of it (`verify`); otherwise only a copy does (`verify_whole`), and `view`
  /// shows bytes that nobody has compared.
  bool is_strict = false;
};

/// Reading costs one pass over the bytes, whoever reads them in whatever order; ranges that were read once
/// are not read again for the checksum as long as they do not overlap. Errors while reading: `format`, naming
/// what it is.
StoragePtr checked_storage(StoragePtr bytes, ExpectedChecksum expected);

}  // namespace cbk
