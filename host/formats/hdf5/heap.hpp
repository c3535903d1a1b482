// The three heaps of HDF5: names of old-style groups, variable-length values, and the objects of dense
// storage.
#pragma once

#include <unordered_map>
#include <vector>

#include "host/formats/hdf5/filters.hpp"

namespace cbk::hdf5 {

/// Names of an old-style group.
class LocalHeap {
 public:
  LocalHeap(const Image& image, uint64_t address);
  [[nodiscard]] std::string_view text(uint64_t offset) const;

 private:
  std::string_view data_;
};

/// Collections of variable-length values, parsed once each.
class GlobalHeap {
 public:
  explicit GlobalHeap(const Image& image) : image_(image) {}
  /// The bytes of object `index` in the collection at `address`.
  [[nodiscard]] ByteView find(uint64_t address, uint32_t index);

 private:
  using Collection = std::unordered_map<uint32_t, ByteView>;
  const Collection& collection(uint64_t address);
  const Image& image_;
  std::unordered_map<uint64_t, Collection> collections_;
};

/// Dense attributes and links.
class FractalHeap {
 public:
  FractalHeap(const Image& image, uint64_t address);
  [[nodiscard]] ByteView find(ByteView id) const;

 private:
  /// A direct block: its place, its stored size, and the filters that were left out.
  struct Block {
    uint64_t address = 0;
    uint64_t stored = 0;
    uint32_t mask = 0;
    uint64_t size = 0;  // unpacked
  };
  void read_filter_info(Cursor& in, uint16_t length);
  [[nodiscard]] ByteView inside(const Block& block, uint64_t offset, uint64_t length) const;
  [[nodiscard]] ByteView managed(uint64_t offset, uint64_t length) const;
  [[nodiscard]] ByteView huge(Cursor id) const;
  [[nodiscard]] uint64_t row_size(uint64_t row) const;
  [[nodiscard]] uint64_t row_start(uint64_t row) const;

  const Image& image_;
  uint16_t id_length_ = 0;
  uint32_t max_managed_ = 0;
  uint64_t huge_tree_ = 0;
  uint64_t width_ = 0;
  uint64_t start_size_ = 0;
  uint64_t max_direct_ = 0;
  unsigned offset_bytes_ = 0;
  unsigned length_bytes_ = 0;
  uint64_t root_ = 0;
  uint64_t root_rows_ = 0;
  std::vector<Filter> filters_;  // of its direct blocks and huge objects
  uint64_t root_stored_ = 0;
  uint32_t root_mask_ = 0;
};

}  // namespace cbk::hdf5
