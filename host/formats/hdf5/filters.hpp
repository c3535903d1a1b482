// The filter pipeline of chunked datasets: deflate, shuffle, Fletcher-32, LZF, LZ4 and Zstandard.
#pragma once

#include <string>
#include <vector>

#include "host/formats/hdf5/image.hpp"

namespace cbk::hdf5 {

struct Filter {
  enum Id : uint16_t { deflate = 1, shuffle = 2, fletcher32 = 3, lzf = 32000, lz4 = 32004, zstd = 32015 };
  uint16_t id = 0;
  bool optional = false;
  std::vector<uint32_t> values;
};

std::vector<Filter> read_filters(Cursor& in);

/// Fails (`unsupported`) with the names of filters that cbk cannot undo.
void check_filters(const std::vector<Filter>& filters);

/// HDF5's checksum of a chunk.
uint32_t fletcher32(ByteView bytes);

/// Undoes the pipeline for one stored chunk. Bit i of `mask`: filter i was left out. The result has exactly
/// `size` bytes; anything else is a `format` error, found before much more than that is allocated.
Bytes decode_chunk(const std::vector<Filter>& filters, uint32_t mask, ByteView stored, uint64_t size);

// Applies the filters to one chunk, for writers. Thread-safe.

constexpr uint32_t deflate_level = 4;  // h5py's
constexpr uint32_t zstd_level = 3;     // zstd's own
Bytes shuffled(ByteView chunk, size_t itemsize);
Bytes deflated(ByteView chunk);
Bytes lz4_packed(ByteView chunk);
Bytes zstd_packed(ByteView chunk);

}  // namespace cbk::hdf5
