// The places of a dataset's chunks.
#pragma once

#include <vector>

#include "host/formats/hdf5/dataset.hpp"

namespace cbk::hdf5 {

struct StoredChunk {
  uint64_t number = 0;  // in C order over the grid of chunks
  uint64_t offset = 0;  // in the file
  uint64_t size = 0;    // as stored
  uint32_t mask = 0;    // filters that were left out
};

/// Sorted by number; chunks that were never written are absent. Every place is inside the file.
std::vector<StoredChunk> read_chunk_index(const Image& image, const Dataset& dataset);

/// The number of chunks along each dimension.
std::vector<uint64_t> chunk_grid(const Dataset& dataset);

/// Fails (`unsupported`) if the elements of a few rows are in so many compressed chunks that these do not fit
/// into memory and would have to be decompressed again for the next rows.
void refuse_tall_chunks(const Dataset& dataset);

/// Bytes of one chunk before any filter; a `format` error beyond what HDF5 allows.
uint64_t chunk_bytes(const Dataset& dataset);

}  // namespace cbk::hdf5
