// Storages with bytes that take less room in the file than in memory.
#pragma once

#include <functional>
#include <string>

#include "host/tensor/storage.hpp"

namespace cbk {

/// Bytes of a storage, and the range of a file that holds them.
struct StoredPiece {
  static constexpr uint64_t unknown = UINT64_MAX;
  std::string file;
  uint64_t offset = unknown;  // of what is stored
  uint64_t stored = 0;        // bytes in the file
  uint64_t size = 0;          // bytes that they give
};
using VisitPiece = std::function<void(const StoredPiece&)>;

/// Pieces that no file has, which read as a fill value, of all that the storage could have.
struct Unwritten {
  uint64_t pieces = 0;
  uint64_t of = 0;
};

/// Compressed or never written storages, and those that read another storage in their own way.
class PackedStorage : public Storage {
 public:
  [[nodiscard]] virtual uint64_t stored_size() const = 0;  // bytes in the file
  /// Visits the parts of the storage that are in the file; the rest was never written.
  virtual void each_piece(const VisitPiece& visit) const {
    const Place from = place();
    visit({from.file, from.offset, stored_size(), size()});
  }
  [[nodiscard]] virtual Unwritten unwritten() const { return {}; }
};

/// The number of bytes that a file uses for the storage.
inline uint64_t stored_size(const Storage& storage) {
  const auto* packed = dynamic_cast<const PackedStorage*>(&storage);
  return packed != nullptr ? packed->stored_size() : storage.size();
}

inline Unwritten unwritten(const Storage& storage) {
  const auto* packed = dynamic_cast<const PackedStorage*>(&storage);
  return packed != nullptr ? packed->unwritten() : Unwritten();
}

/// Visits the parts of any storage that are in a file.
inline void each_piece(const Storage& storage, const VisitPiece& visit) {
  if (const auto* packed = dynamic_cast<const PackedStorage*>(&storage)) return packed->each_piece(visit);
  const Storage::Place from = storage.place();
  visit({from.file, from.offset, storage.size(), storage.size()});
}

/// The same for a part of a storage, or for another way to read it.
inline void each_piece_of(const Storage& inner, const Storage& outer, const VisitPiece& visit) {
  const auto* packed = dynamic_cast<const PackedStorage*>(&inner);
  if (packed != nullptr) return packed->each_piece(visit);
  const Storage::Place from = outer.place();
  visit({from.file, from.offset, outer.size(), outer.size()});
}

}  // namespace cbk
