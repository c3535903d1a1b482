// The byte order of the machine that wrote a torch file.
#pragma once

#include <map>
#include <utility>

#include "host/tensor/dtype.hpp"
#include "host/tensor/storage.hpp"

namespace cbk::torch {

/// Returns storages in this machine's order; one object per storage and element size, so that sharing
/// is kept.
class ByteOrder {
 public:
  void set_big_endian(bool is_big_endian) { is_big_endian_ = is_big_endian; }
  [[nodiscard]] bool is_big_endian() const { return is_big_endian_; }

  StoragePtr in_order(const StoragePtr& storage, DType dtype) {
    const uint32_t part = is_complex(dtype) ? size_of(dtype) / 2 : size_of(dtype);
    if (!is_big_endian_ || part == 1) return storage;
    StoragePtr& swapped = swapped_[{storage, part}];
    if (!swapped) swapped = swapped_storage(storage, part);
    return swapped;
  }

 private:
  bool is_big_endian_ = false;
  std::map<std::pair<StoragePtr, uint32_t>, StoragePtr> swapped_;
};

}  // namespace cbk::torch
