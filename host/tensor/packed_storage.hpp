// Storages whose bytes take less room in the file than they have.
#pragma once

#include "host/tensor/storage.hpp"

namespace cbk {

/// Compressed, or never written; also what reads another storage in its own way.
class PackedStorage : public Storage {
 public:
  [[nodiscard]] virtual uint64_t stored_size() const = 0;  // bytes in the file
};

/// How many bytes in a file hold those of the storage.
inline uint64_t stored_size(const Storage& storage) {
  const auto* packed = dynamic_cast<const PackedStorage*>(&storage);
  return packed != nullptr ? packed->stored_size() : storage.size();
}

}  // namespace cbk
