// Copies a box of elements seen through strides into dense C order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace cbk {

/// One loop of a box: the number of steps, and their distance in the source, in elements.
struct Loop {
  int64_t extent = 0;
  int64_t stride = 0;
};

/// Copies the box (outermost loop first) that starts at element `offset` of `source` into `out`, densely.
/// Itemsize is 1, 2, 4, 8 or 16. Transposed matrices are moved in tiles of one cache line.
void copy_box(const std::byte* source, int64_t offset, std::span<const Loop> loops, uint32_t itemsize,
              std::byte* out);

/// Whether a run of this loop is read with the data between its elements, and thinned out.
inline bool is_thinned(const Loop& loop) {
  return loop.stride > 1 && loop.stride <= 16;
}

/// As copy_box for a source that can only be read in runs of consecutive elements: `read(begin, bytes)`.
/// Reads in the order of the source, so that chunked sources decode each chunk about once.
using RunReader = std::function<void(int64_t begin, std::span<std::byte> out)>;
void copy_box(const RunReader& read, int64_t offset, std::span<const Loop> loops, uint32_t itemsize,
              std::byte* out);

/// As above, run by run in the order of the result: for long runs.
void read_runs(const RunReader& read, int64_t offset, std::span<const Loop> loops, uint32_t itemsize,
               std::byte* out);

/// Copies the runs of `bytes` bytes at these places of `source`, one after the other.
void copy_runs(const std::byte* source, std::span<const int64_t> places, size_t bytes, std::byte* out);

/// Splits elements [begin, end) of the whole nest of loops into boxes, in order: `visit(offset, loops,
/// count)`.
using BoxVisitor = std::function<void(int64_t offset, std::span<const Loop> loops, int64_t count)>;
void for_each_box(int64_t offset, std::span<const Loop> loops, int64_t begin, int64_t end,
                  const BoxVisitor& visit);

}  // namespace cbk
