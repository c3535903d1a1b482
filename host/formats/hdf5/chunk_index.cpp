#include "host/formats/hdf5/chunk_index.hpp"

#include <algorithm>

#include "host/formats/hdf5/btree2.hpp"

namespace cbk::hdf5 {
namespace {

/// The grid of chunks that a dataset may grow to.
std::vector<uint64_t> largest_grid(const Dataset& dataset) {
  Dataset largest;
  largest.space.extents = dataset.space.limits.empty() ? dataset.space.extents : dataset.space.limits;
  largest.layout.chunk = dataset.layout.chunk;
  return chunk_grid(largest);
}

class IndexReader {
 public:
  IndexReader(const Image& image, const Dataset& dataset)
      : image_(image),
        dataset_(dataset),
        grid_(chunk_grid(dataset)),
        largest_grid_(largest_grid(dataset)),
        bytes_(chunk_bytes(dataset)) {}

  std::vector<StoredChunk> run() {
    const Layout& layout = dataset_.layout;
    if (layout.kind != Layout::Kind::chunked || layout.address == undefined_address) return {};
    switch (layout.index) {
      case Layout::Index::btree1:
        read_btree1(layout.address, -1);
        break;
      case Layout::Index::single:
        add(0, layout.address, layout.single_size > 0 ? layout.single_size : bytes_, layout.single_mask);
        break;
      case Layout::Index::implicit:
        read_implicit();
        break;
      case Layout::Index::fixed_array:
        read_fixed_array();
        break;
      case Layout::Index::btree2:
        read_btree2();
        break;
      case Layout::Index::extensible_array:
        fail(Errc::internal, "chunks of an extensible array are read by the HDF5 library");
    }
    std::sort(chunks_.begin(), chunks_.end(),
              [](const StoredChunk& a, const StoredChunk& b) { return a.number < b.number; });
    const auto twice =
        std::adjacent_find(chunks_.begin(), chunks_.end(),
                           [](const StoredChunk& a, const StoredChunk& b) { return a.number == b.number; });
    if (twice != chunks_.end()) damaged("chunk {} is in the index twice", twice->number);
    refuse_overlaps();
    claim();
    return std::move(chunks_);
  }

 private:
  /// Fails for chunks that share a part of their bytes.
  void refuse_overlaps() const {
    std::vector<const StoredChunk*> order;
    order.reserve(chunks_.size());
    for (const StoredChunk& chunk : chunks_) order.push_back(&chunk);
    std::ranges::sort(order, {},
                      [](const StoredChunk* chunk) { return std::pair(chunk->offset, chunk->size); });
    for (size_t i = 1; i < order.size(); ++i) {
      const StoredChunk& before = *order[i - 1];
      const StoredChunk& next = *order[i];
      if (next.offset - before.offset < before.size)
        damaged("chunks {} and {} overlap, at byte {}", before.number, next.number, next.offset);
    }
  }

  /// Fails for chunks that share bytes with the data of other datasets, or with the nodes of their index.
  void claim() {
    for (const StoredChunk& chunk : chunks_)
      if (chunk.size > 0) taken_.push_back({chunk.offset, chunk.offset + chunk.size});
    image_.claim(dataset_.layout.address, std::move(taken_));
  }

  void add(uint64_t number, uint64_t address, uint64_t size, uint32_t mask) {
    if (address == undefined_address) return;
    const uint64_t offset = checked_add(image_.base(), address, "the place of a chunk");
    const uint64_t end = checked_add(offset, size, "the place of a chunk");
    if (end > image_.file()->size())
      damaged("a chunk is at bytes {} to {}, beyond the end; is it cut short?", offset, end);
    image_.refuse_superblock(offset, end);
    if (dataset_.filters.empty() && size < bytes_) damaged("a chunk has {} of {} bytes", size, bytes_);
    image_.memory().charge(sizeof(StoredChunk));
    chunks_.push_back({number, offset, size, mask});
  }

  /// The number of the chunk at these chunk coordinates. One outside of the shape is damage: the library
  /// removes them when a dataset shrinks.
  template <typename Coordinate>
  [[nodiscard]] uint64_t number_of(Coordinate coordinate) const {
    uint64_t number = 0;
    for (size_t d = 0; d < grid_.size(); ++d) {
      const uint64_t c = coordinate(d);
      if (c >= grid_[d])
        damaged("a chunk begins at {} in dimension {}, where the shape has {}", c * dataset_.layout.chunk[d],
                d, dataset_.space.extents[d]);
      number = number * grid_[d] + c;
    }
    return number;
  }

  void read_btree1(uint64_t address, int level) {
    const FieldSizes sizes = image_.sizes();
    const uint64_t head = 8 + 2ULL * sizes.address;
    Cursor start = image_.cursor(address, head, "a chunk B-tree");
    start.expect("TREE");
    if (start.u8() != 1) damaged("a chunk B-tree of the wrong type");
    const int found = start.u8();
    if (level >= 0 && found != level) damaged("a chunk B-tree of uneven depth");
    const uint16_t count = start.u16();
    const uint64_t rank = grid_.size();
    const uint64_t key = 8 + 8 * (rank + 1);
    Cursor in = image_.cursor(address + head, count * (key + sizes.address), "a chunk B-tree");
    const uint64_t entries = std::max<uint64_t>(count, 2ULL * image_.superblock().chunk_rank);
    const uint64_t begin = image_.base() + address;
    taken_.push_back(
        {begin, std::min(begin + head + entries * (key + sizes.address) + key, image_.file()->size())});
    for (uint16_t i = 0; i < count; ++i) {
      const uint32_t size = in.u32();
      const uint32_t mask = in.u32();
      if (found > 0) {  // the key may be that of a chunk that was removed
        in.skip(8 * (rank + 1));
        read_btree1(in.address(), found - 1);
        continue;
      }
      const uint64_t number = number_of([&](size_t d) {
        const uint64_t offset = in.u64();
        if (offset % dataset_.layout.chunk[d] != 0) damaged("a chunk that is not on the chunk grid");
        return offset / dataset_.layout.chunk[d];
      });
      in.u64();
      add(number, in.address(), size, mask);
    }
  }

  /// How many chunks an array has room for: those of the largest extents.
  [[nodiscard]] uint64_t array_size() const {
    uint64_t total = 1;
    for (uint64_t extent : largest_grid_) total = checked_mul(total, extent, "the grid of chunks");
    return total;
  }

  /// Adds the chunk at a place of an array, unless it is outside of the shape.
  void add_in_array(uint64_t place, uint64_t address, uint64_t size, uint32_t mask) {
    uint64_t number = 0;
    uint64_t scale = 1;
    for (size_t d = grid_.size(); d-- > 0;) {
      const uint64_t coordinate = place % largest_grid_[d];
      place /= largest_grid_[d];
      if (coordinate >= grid_[d]) return;
      number += coordinate * scale;
      scale *= grid_[d];
    }
    add(number, address, size, mask);
  }

  void read_implicit() {
    const uint64_t total = array_size();
    if (total > image_.file()->size() / std::max<uint64_t>(bytes_, 1))
      damaged("more chunks than the file can hold");
    image_.charge(total * sizeof(StoredChunk));
    for (uint64_t i = 0; i < total; ++i) add_in_array(i, dataset_.layout.address + i * bytes_, bytes_, 0);
  }

  void read_fixed_array() {
    const FieldSizes sizes = image_.sizes();
    Cursor head = image_.checked(dataset_.layout.address, 4 + 4 + sizes.length + sizes.address + 4, "FAHD",
                                 "a chunk array");
    head.skip(1);
    const bool filtered = head.u8() == 1;
    const unsigned entry = head.u8();
    const uint8_t page_bits = head.u8();
    const uint64_t count = head.length();
    const uint64_t block = head.address();
    if (block == undefined_address) return;
    const unsigned size_bytes = filtered ? entry - std::min(entry, sizes.address + 4U) : 0;
    if (page_bits > 32 || size_bytes > 8 || (filtered ? size_bytes == 0 : entry != sizes.address))
      damaged("a chunk array with impossible sizes");
    if (count > array_size() || count > image_.file()->size()) damaged("a chunk array with {} chunks", count);
    const auto read_entries = [&](Cursor& in, uint64_t first, uint64_t entries) {
      for (uint64_t i = 0; i < entries; ++i) {
        const uint64_t address = in.address();
        const uint64_t size = filtered ? in.number(size_bytes) : bytes_;
        add_in_array(first + i, address, size, filtered ? in.u32() : 0);
      }
    };
    const uint64_t page = uint64_t{1} << page_bits;
    const uint64_t prefix = 4 + 2 + sizes.address;
    if (count <= page) {
      Cursor in = image_.checked(block, prefix + count * entry + 4, "FADB", "a chunk array");
      in.skip(2 + sizes.address);
      read_entries(in, 0, count);
      return;
    }
    const uint64_t pages = (count + page - 1) / page;
    const uint64_t bitmap_size = (pages + 7) / 8;
    Cursor in = image_.checked(block, prefix + bitmap_size + 4, "FADB", "a chunk array");
    in.skip(2 + sizes.address);
    const ByteView bitmap = in.take(bitmap_size);
    uint64_t at = block + prefix + bitmap_size + 4;
    for (uint64_t p = 0; p < pages; ++p) {
      const uint64_t entries = std::min(page, count - p * page);
      const bool written = (std::to_integer<unsigned>(bitmap[p / 8]) >> (7 - p % 8) & 1) != 0;
      if (written) {
        Cursor body = image_.checked(at, entries * entry + 4, "", "a page of a chunk array");
        read_entries(body, p * page, entries);
      }
      at += entries * entry + 4;
    }
  }

  void read_btree2() {
    const bool filtered = !dataset_.filters.empty();
    for_each_record(image_, dataset_.layout.address,
                    filtered ? RecordType::filtered_chunk : RecordType::chunk, [&](Cursor in) {
                      const uint64_t address = in.address();
                      uint64_t size = bytes_;
                      uint32_t mask = 0;
                      if (filtered) {
                        const uint64_t rest = 4 + 8 * grid_.size();
                        if (in.remaining() <= rest || in.remaining() - rest > 8)
                          damaged("a chunk record of the wrong size");
                        size = in.number(static_cast<unsigned>(in.remaining() - rest));
                        mask = in.u32();
                      }
                      add(number_of([&](size_t) { return in.u64(); }), address, size, mask);
                    });
  }

  const Image& image_;
  const Dataset& dataset_;
  std::vector<uint64_t> grid_;
  std::vector<uint64_t> largest_grid_;
  uint64_t bytes_ = 0;
  std::vector<StoredChunk> chunks_;
  std::vector<Range> taken_;
};

}  // namespace

std::vector<uint64_t> chunk_grid(const Dataset& dataset) {
  const std::vector<uint64_t>& extents = dataset.space.extents;
  const std::vector<uint64_t>& chunk = dataset.layout.chunk;
  if (extents.size() != chunk.size())
    damaged("{} extents, but chunks of rank {}", extents.size(), chunk.size());
  std::vector<uint64_t> grid;
  for (size_t d = 0; d < extents.size(); ++d)
    grid.push_back(extents[d] / chunk[d] + (extents[d] % chunk[d] != 0 ? 1 : 0));
  return grid;
}

void refuse_tall_chunks(const Dataset& dataset) {
  constexpr double most = 256 << 20;  // is unpacked 32 times, in some seconds
  constexpr double few = 16;          // of chunks: those are unpacked step by step
  const std::vector<uint64_t>& chunk = dataset.layout.chunk;
  const std::vector<uint64_t>& extents = dataset.space.extents;
  if (dataset.layout.kind != Layout::Kind::chunked || dataset.filters.empty() ||
      chunk.size() != extents.size())
    return;
  size_t along = 0;
  while (along + 1 < chunk.size() && chunk[along] == 1) ++along;
  double side_by_side = 1;
  auto bytes = static_cast<double>(dataset.type.size);
  for (size_t d = along; d < chunk.size(); ++d) {
    const uint64_t whole_cells = (extents[d] + chunk[d] - 1) / chunk[d];
    const auto cells = static_cast<double>(whole_cells);
    if (d > along) side_by_side *= cells;
    bytes *= static_cast<double>(chunk[d]) * (d > along ? cells : 1);
  }
  if (side_by_side <= few || bytes <= most) return;
  fail(Errc::unsupported,
       "{} packed chunks of together {} lie side by side, and would have to be unpacked again for every few "
       "of "
       "their {} rows; rewrite the file with chunks of fewer rows (h5repack -l CHUNK=...)",
       static_cast<uint64_t>(side_by_side), format_size(static_cast<uint64_t>(bytes)), chunk[along]);
}

uint64_t chunk_bytes(const Dataset& dataset) {
  uint64_t total = dataset.type.size;
  for (uint64_t extent : dataset.layout.chunk) total = checked_mul(total, extent, "a chunk");
  if (total > UINT32_MAX) damaged("chunks of {}", format_size(total));
  return total;
}

std::vector<StoredChunk> read_chunk_index(const Image& image, const Dataset& dataset) {
  return IndexReader(image, dataset).run();
}

}  // namespace cbk::hdf5
