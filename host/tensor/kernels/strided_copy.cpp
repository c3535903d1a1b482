#include "host/tensor/kernels/strided_copy.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "host/base/clones.hpp"
#include "host/base/error.hpp"
#include "host/base/scratch.hpp"

namespace cbk {
namespace {

struct Pair {  // a 16-byte element (complex128)
  uint64_t low;
  uint64_t high;
};

constexpr int64_t line_bytes = 64;

/// Storages start at any byte, so elements are moved with memcpy, never through a T*.
template <typename T>
void copy_run(const std::byte* source, int64_t stride, int64_t count, std::byte* out) {
  if (stride == 1) {
    std::memcpy(out, source, static_cast<size_t>(count) * sizeof(T));
    return;
  }
  if (stride == 0) {
    T element;
    std::memcpy(&element, source, sizeof(T));
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(out + i * static_cast<int64_t>(sizeof(T)), &element, sizeof(T));
    return;
  }
  const auto step = stride * static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(out + i * static_cast<int64_t>(sizeof(T)), source + i * step, sizeof(T));
}

constexpr int64_t vector_bytes = 16;

template <typename T>
struct Vector {
  using Type __attribute__((vector_size(vector_bytes))) = T;
};
template <>
struct Vector<Pair> : Vector<uint64_t> {};

/// a[k], b[k], a[k + 1], b[k + 1], … for half of the elements, from `first` on.
template <size_t first, typename V, size_t... k>
V interleaved(V a, V b, std::index_sequence<k...>) {
  return __builtin_shufflevector(a, b, static_cast<int>(first + k / 2 + k % 2 * sizeof...(k))...);
}

/// As many rows as a vector has elements, `stride` and `pitch` bytes apart. Each round interleaves the rows
/// of the first half with those of the second; after log2(n) rounds rows are columns.
template <typename T>
void transpose_square(const std::byte* source, int64_t stride, std::byte* out, int64_t pitch) {
  using V = typename Vector<T>::Type;
  constexpr size_t n = vector_bytes / sizeof(T);
  std::array<V, n> rows;
  for (size_t i = 0; i < n; ++i) std::memcpy(&rows[i], source + static_cast<int64_t>(i) * stride, sizeof(V));
  if constexpr (n > 1) {
    for (size_t round = n; round > 1; round /= 2) {
      const std::array<V, n> before = rows;
      for (size_t i = 0; i < n / 2; ++i) {
        rows[2 * i] = interleaved<0>(before[i], before[i + n / 2], std::make_index_sequence<n>());
        rows[2 * i + 1] = interleaved<n / 2>(before[i], before[i + n / 2], std::make_index_sequence<n>());
      }
    }
  }
  for (size_t i = 0; i < n; ++i) std::memcpy(out + static_cast<int64_t>(i) * pitch, &rows[i], sizeof(V));
}

/// One whole tile: rows of a cache line each, `stride` and `pitch` bytes apart.
template <typename T>
void transpose_tile(const std::byte* source, int64_t stride, std::byte* out, int64_t pitch) {
  constexpr int64_t tile = line_bytes / sizeof(T);
  constexpr int64_t square = vector_bytes / sizeof(T);
  std::array<std::byte, tile * line_bytes> columns;
  for (int64_t b = 0; b < tile; b += square) {
    for (int64_t a = 0; a < tile; a += square) {
      transpose_square<T>(source + b * stride + a * static_cast<int64_t>(sizeof(T)), stride,
                          columns.data() + a * line_bytes + b * static_cast<int64_t>(sizeof(T)), line_bytes);
    }
  }
  for (int64_t a = 0; a < tile; ++a)
    std::memcpy(out + a * pitch, columns.data() + a * line_bytes, line_bytes);
}

/// out[i][j] = source[i + j·stride] for an n × m block. Whole cache lines are read and written, whatever the
/// strides; a strip of several lines per source row is done before the next row, because each row may lie in
/// a page of its own.
template <typename T>
void transpose_tiles(const std::byte* source, int64_t stride, int64_t n, int64_t m, std::byte* out) {
  constexpr int64_t size = sizeof(T);
  constexpr int64_t tile = line_bytes / size;
  constexpr int64_t strip = 16 * tile;
  const int64_t full_n = n / tile * tile;
  const int64_t full_m = m / tile * tile;
  for (int64_t first = 0; first < full_n; first += strip) {
    const int64_t last = std::min(first + strip, full_n);
    for (int64_t j = 0; j < full_m; j += tile) {
      for (int64_t i = first; i < last; i += tile) {
        transpose_tile<T>(source + (i + j * stride) * size, stride * size, out + (i * m + j) * size,
                          m * size);
      }
    }
  }
  for (int64_t i = 0; i < full_n; ++i) {
    copy_run<T>(source + (i + full_m * stride) * size, stride, m - full_m, out + (i * m + full_m) * size);
  }
  constexpr int64_t square = vector_bytes / size;
  const int64_t square_n = full_n + (n - full_n) / square * square;
  const int64_t square_m = m / square * square;
  for (int64_t i = full_n; i < square_n; i += square) {
    for (int64_t j = 0; j < square_m; j += square) {
      transpose_square<T>(source + (i + j * stride) * size, stride * size, out + (i * m + j) * size,
                          m * size);
    }
  }
  for (int64_t i = full_n; i < n; ++i) {
    const int64_t done = i < square_n ? square_m : 0;
    copy_run<T>(source + (i + done * stride) * size, stride, m - done, out + (i * m + done) * size);
  }
}

int64_t count_of(std::span<const Loop> loops) {
  int64_t count = 1;
  for (const Loop& loop : loops) count *= loop.extent;
  return count;
}

template <typename T>
void copy_typed(const std::byte* source, std::span<const Loop> loops, std::byte* out) {
  constexpr int64_t size = sizeof(T);
  if (loops.empty()) {
    std::memcpy(out, source, sizeof(T));
  } else if (loops.size() == 1) {
    copy_run<T>(source, loops[0].stride, loops[0].extent, out);
  } else if (loops.size() == 2 && loops[0].stride == 1 && loops[1].stride > 1) {
    transpose_tiles<T>(source, loops[1].stride, loops[0].extent, loops[1].extent, out);
  } else {
    const int64_t inner = count_of(loops.subspan(1));
    const bool repeats = loops[0].stride == 0;
    for (int64_t i = 0; i < (repeats ? 1 : loops[0].extent); ++i) {
      copy_typed<T>(source + i * loops[0].stride * size, loops.subspan(1), out + i * inner * size);
    }
    for (int64_t i = 1; repeats && i < loops[0].extent; ++i)
      std::memcpy(out + i * inner * size, out, static_cast<size_t>(inner * size));
  }
}

/// The unit-stride loop is neither the last nor the second to last: better gathered in source order, then
/// permuted in memory.
bool wants_source_order(std::span<const Loop> loops) {
  for (size_t i = 0; i + 2 < loops.size(); ++i) {
    if (loops[i].stride == 1 && loops[i].extent > 1 && loops.back().stride != 1) return true;
  }
  return false;
}

/// The same box as two walks: `ordered` walks the source with falling strides and without repetitions,
/// `dense` walks the dense result of that walk in the original order.
struct Reordered {
  std::vector<Loop> ordered;
  std::vector<Loop> dense;
};

Reordered reorder(std::span<const Loop> loops) {
  std::vector<size_t> order;
  for (size_t i = 0; i < loops.size(); ++i) {
    if (loops[i].stride != 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return loops[a].stride > loops[b].stride; });
  Reordered result;
  result.dense.assign(loops.begin(), loops.end());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    result.dense[order[i]].stride = stride;
    stride *= loops[order[i]].extent;
  }
  for (const size_t position : order) {
    const Loop& loop = loops[position];
    if (!result.ordered.empty() && result.ordered.back().stride == loop.extent * loop.stride) {
      result.ordered.back() = {result.ordered.back().extent * loop.extent, loop.stride};
    } else {
      result.ordered.push_back(loop);
    }
  }
  return result;
}

template <typename Visit>
void dispatch(uint32_t itemsize, Visit&& visit) {
  switch (itemsize) {
    case 1:
      return visit(uint8_t{});
    case 2:
      return visit(uint16_t{});
    case 4:
      return visit(uint32_t{});
    case 8:
      return visit(uint64_t{});
    case 16:
      return visit(Pair{});
    default:
      fail(Errc::internal, "strided copy of {}-byte elements", itemsize);
  }
}

/// One run of a loop: a small stride is read completely and thinned out, a large one element by element.
void read_run(const RunReader& read, int64_t begin, const Loop& loop, uint32_t itemsize, std::byte* out) {
  if (loop.stride == 1 || loop.extent == 1) {
    read(begin, {out, static_cast<size_t>(loop.extent) * itemsize});
  } else if (is_thinned(loop)) {
    Scratch wide(static_cast<size_t>((loop.extent - 1) * loop.stride + 1) * itemsize);
    read(begin, wide.bytes());
    const std::array<Loop, 1> loops = {loop};
    copy_box(wide.data(), 0, loops, itemsize, out);
  } else {
    for (int64_t i = 0; i < loop.extent; ++i) {
      read(begin + i * loop.stride, {out + static_cast<size_t>(i) * itemsize, itemsize});
    }
  }
}

}  // namespace

void read_runs(const RunReader& read, int64_t begin, std::span<const Loop> loops, uint32_t itemsize,
               std::byte* out) {
  if (loops.size() <= 1) {
    read_run(read, begin, loops.empty() ? Loop{1, 1} : loops[0], itemsize, out);
    return;
  }
  const auto inner = static_cast<size_t>(count_of(loops.subspan(1))) * itemsize;
  for (int64_t i = 0; i < loops[0].extent; ++i) {
    read_runs(read, begin + i * loops[0].stride, loops.subspan(1), itemsize,
              out + static_cast<size_t>(i) * inner);
  }
}

void copy_box(const std::byte* source, int64_t offset, std::span<const Loop> loops, uint32_t itemsize,
              std::byte* out) {
  dispatch(itemsize, [&](auto sample) {
    using T = decltype(sample);
    const std::byte* first = source + offset * static_cast<int64_t>(sizeof(T));
    if (!wants_source_order(loops)) {
      copy_typed<T>(first, loops, out);
      return;
    }
    const Reordered box = reorder(loops);
    Scratch scratch(static_cast<size_t>(count_of(box.ordered)) * itemsize);
    copy_typed<T>(first, box.ordered, scratch.data());
    copy_typed<T>(scratch.data(), box.dense, out);
  });
}

void copy_box(const RunReader& read, int64_t offset, std::span<const Loop> loops, uint32_t itemsize,
              std::byte* out) {
  if (count_of(loops) == 0) return;
  if (loops.size() == 1 && loops[0].stride == 1) return read_run(read, offset, loops[0], itemsize, out);
  const Reordered box = reorder(loops);
  Scratch scratch(static_cast<size_t>(count_of(box.ordered)) * itemsize);
  read_runs(read, offset, box.ordered, itemsize, scratch.data());
  copy_box(scratch.data(), 0, box.dense, itemsize, out);
}

namespace {

CBK_CLONES void gather_words(const uint32_t* source, const int64_t* places, size_t count, uint32_t* out) {
  for (size_t i = 0; i < count; ++i) out[i] = source[places[i]];
}

}  // namespace

void copy_runs(const std::byte* source, std::span<const int64_t> places, size_t bytes, std::byte* out) {
  const bool is_aligned =
      (reinterpret_cast<uintptr_t>(source) | reinterpret_cast<uintptr_t>(out)) % alignof(uint32_t) == 0;
  if (bytes == sizeof(uint32_t) && is_aligned) {
    return gather_words(reinterpret_cast<const uint32_t*>(source), places.data(), places.size(),
                        reinterpret_cast<uint32_t*>(out));
  }
  for (size_t i = 0; i < places.size(); ++i)
    std::memcpy(out + i * bytes, source + static_cast<size_t>(places[i]) * bytes, bytes);
}

void for_each_box(int64_t offset, std::span<const Loop> loops, int64_t begin, int64_t end,
                  const BoxVisitor& visit) {
  if (begin >= end) return;
  if (loops.empty()) {
    visit(offset, loops, 1);
    return;
  }
  const std::span<const Loop> rest = loops.subspan(1);
  const int64_t inner = count_of(rest);
  int64_t first = begin / inner;
  if (begin % inner != 0) {
    const int64_t stop = std::min(end, (first + 1) * inner);
    for_each_box(offset + first * loops[0].stride, rest, begin - first * inner, stop - first * inner, visit);
    begin = stop;
    ++first;
  }
  const int64_t last = end / inner;
  if (begin < end && last > first) {
    std::vector<Loop> box(loops.begin(), loops.end());
    box[0].extent = last - first;
    visit(offset + first * loops[0].stride, box, (last - first) * inner);
    begin = last * inner;
  }
  if (begin < end)
    for_each_box(offset + last * loops[0].stride, rest, begin - last * inner, end - last * inner, visit);
}

}  // namespace cbk
