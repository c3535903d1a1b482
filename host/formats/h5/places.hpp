// Where the datasets of a checkpoint are in their files: no two of them share a part of their bytes.
#pragma once

#include <string>
#include <vector>

#include "host/formats/hdf5/dataset.hpp"
#include "host/formats/hdf5/file.hpp"

namespace cbk::h5 {

/// Knows headers and contiguous data; chunks claim their places when their index is read. Not thread-safe.
class Places {
 public:
  /// `file` outlives this object.
  void add(const hdf5::File& file, const hdf5::ObjectHeader& object, const hdf5::Dataset& dataset,
           const std::string& name);
  /// Fails (`format`) for data that is in the data of another dataset, or in a header. Names of one header
  /// are a tie. Claims the data, for chunks that are compared with it later; headers, as all structures, are
  /// claimed where they are read.
  void refuse_overlaps() const;

 private:
  struct Place {
    const hdf5::File* file = nullptr;
    uint64_t begin = 0;
    uint64_t size = 0;
    uint64_t owner = 0;  // the address of the header
    size_t name = 0;     // in `names_`
    bool is_header = false;
  };
  std::vector<Place> places_;
  std::vector<std::string> names_;
};

}  // namespace cbk::h5
