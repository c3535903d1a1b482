// The index of a bundle: its variables, and the places of their bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/memory_budget.hpp"
#include "host/formats/tensorflow/dtypes.hpp"
#include "host/formats/tensorflow/slice_key.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk::tensorflow {

struct Entry {
  std::string name;
  const DTypeInfo* dtype = nullptr;  // of the table of dtypes; `unknown_dtype` for others
  int dtype_number = 0;              // as the index says it
  Shape shape;
  uint32_t shard = 0;  // the data file
  uint64_t offset = 0;
  uint64_t size = 0;
  uint32_t crc = 0;  // masked
  /// If not empty, the bytes are in the entries with these extents.
  std::vector<std::vector<Extent>> slices;
};

struct Index {
  uint32_t shards = 1;
  bool big_endian = false;
  std::vector<Entry> variables;         // by name
  std::map<std::string, Entry> slices;  // by their keys
};

/// Reads and checks all entries; the size of each fits its type and shape, and no two share a part of their
/// bytes. Errors: `format`, naming the variable.
Index read_index(const MappedFile& file, MemoryBudget& memory);

/// The content of the file `<prefix>.index` of little-endian data. `variables`: by name, without slices.
std::string write_index(uint32_t shards, const std::vector<Entry>& variables);

}  // namespace cbk::tensorflow
