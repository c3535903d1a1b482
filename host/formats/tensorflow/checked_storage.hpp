// The bytes of a variable, compared with the checksum of the index while they are read.
#pragma once

#include <string>

#include "host/tensor/storage.hpp"

namespace cbk::tensorflow {

/// Reading costs one pass over the bytes, whoever reads them in whatever order; ranges that were read once
/// are not read again for the checksum as long as they do not overlap. `crc` is masked. Errors while reading:
/// `format`, naming the variable.
StoragePtr checked_storage(StoragePtr bytes, uint32_t crc, std::string name);

}  // namespace cbk::tensorflow
