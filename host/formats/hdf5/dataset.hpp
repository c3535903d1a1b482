// A dataset: its type, shape, and the places of its elements.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "host/formats/hdf5/filters.hpp"
#include "host/formats/hdf5/object.hpp"

namespace cbk::hdf5 {

struct Layout {
  enum class Kind { compact, contiguous, chunked, external, virtual_ };
  /// The kind of chunk index.
  enum class Index { btree1, single, implicit, fixed_array, extensible_array, btree2 };
  struct Piece {
    std::string file;
    uint64_t offset = 0;
    uint64_t size = 0;  // `undefined_address`: the rest of the file
  };

  Kind kind = Kind::contiguous;
  uint64_t address = undefined_address;  // data, or the index of the chunks
  uint64_t size = 0;                     // contiguous and compact: bytes
  ByteView data;                         // compact
  std::vector<uint64_t> chunk;           // chunked: extents of a chunk
  uint64_t element_size = 0;             // chunked: bytes
  Index index = Index::btree1;
  uint64_t single_size = 0;  // single: bytes stored, if filtered
  uint32_t single_mask = 0;
  std::vector<Piece> pieces;  // external
};

struct Dataset {
  Datatype type;
  Dataspace space;
  Layout layout;
  std::vector<Filter> filters;
  Bytes fill;  // one element, or empty: zeros
};

Dataset read_dataset(const Objects& objects, const ObjectHeader& object);

/// Maps an external raw file by the name the dataset gives.
using OpenExternal = std::function<std::shared_ptr<const MappedFile>(const std::string& name)>;

/// The elements as little-endian bytes in C order. Nothing is read or decoded yet, and nothing of the
/// declared size is allocated. The dataset must have a dtype.
StoragePtr open_storage(const std::shared_ptr<const Image>& image, const Dataset& dataset,
                        const OpenExternal& external);

}  // namespace cbk::hdf5
