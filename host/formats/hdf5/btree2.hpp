// Version 2 B-trees: the index of dense attributes and links, of huge heap objects, and of newer chunked
// datasets.
#pragma once

#include <functional>

#include "host/formats/hdf5/image.hpp"

namespace cbk::hdf5 {

enum class RecordType : uint8_t {
  huge_object = 1,
  packed_huge_object = 2,
  link_name = 5,
  attribute_name = 8,
  chunk = 10,
  filtered_chunk = 11,
};

/// Calls `visit` with every record, in the order of the tree.
void for_each_record(const Image& image, uint64_t address, RecordType type,
                     const std::function<void(Cursor)>& visit);

}  // namespace cbk::hdf5
