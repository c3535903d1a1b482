#include "host/formats/hdf5/chunked_storage.hpp"

#include <algorithm>

#include "host/tensor/inflated_storage.hpp"

namespace cbk::hdf5 {
namespace {

/// A larger chunk is not kept whole if it can be unpacked sequentially; only one is decoded at a time.
constexpr uint64_t large_chunk = uint64_t{8} << 20;
constexpr size_t most_streams = 16;

/// The memory that `decode_chunk` needs at once.
uint64_t decoding_bytes(const std::vector<Filter>& filters, uint64_t chunk_bytes) {
  return chunk_bytes * std::min<uint64_t>(filters.size(), 2);
}

}  // namespace

/// Indices [first, last) of dimension `dim` below the fixed ones in `at`, and all of the dimensions
/// after it.
struct ChunkedStorage::Box {
  const std::vector<uint64_t>& at;
  size_t dim;
  uint64_t first;
  uint64_t last;
};

ChunkedStorage::ChunkedStorage(std::shared_ptr<const Image> image, Dataset dataset)
    : image_(std::move(image)), dataset_(std::move(dataset)), id_(BlockCache::instance().new_storage()) {
  if (dataset_.layout.kind != Layout::Kind::chunked) {  // nothing allocated: one grid cell that is absent
    dataset_.layout.chunk.clear();
    for (uint64_t extent : dataset_.space.extents)
      dataset_.layout.chunk.push_back(std::max<uint64_t>(extent, 1));
  } else {
    check_filters(dataset_.filters);
    refuse_tall_chunks(dataset_);
    chunk_bytes_ = hdf5::chunk_bytes(dataset_);
  }
  size_ = checked_mul(dataset_.space.count(), dataset_.type.size, "a dataset");
  grid_ = chunk_grid(dataset_);
  extents_ = dataset_.space.extents;
  chunk_ = dataset_.layout.chunk;
  if (extents_.empty()) extents_ = chunk_ = grid_ = {1};
  extents_.back() *= dataset_.type.size;
  chunk_.back() = checked_mul(chunk_.back(), dataset_.type.size, "a chunk");
  strides_.assign(extents_.size(), 1);
  for (size_t d = extents_.size() - 1; d-- > 0;) strides_[d] = strides_[d + 1] * extents_[d + 1];
}

ChunkedStorage::~ChunkedStorage() {
  BlockCache::instance().forget(id_);
}

const std::vector<StoredChunk>& ChunkedStorage::index() const {
  const bool is_chunked = dataset_.layout.kind == Layout::Kind::chunked;
  if (is_chunked) std::call_once(indexed_, [this] { index_ = read_chunk_index(*image_, dataset_); });
  return index_;
}

uint64_t ChunkedStorage::stored_size() const {
  uint64_t total = 0;
  for (const StoredChunk& chunk : index()) total += chunk.size;
  return total;
}

void ChunkedStorage::each_piece(const VisitPiece& visit) const {
  StoredPiece piece{image_->file()->path().string(), 0, 0, std::min(chunk_bytes_, size_)};
  for (const StoredChunk& chunk : index()) {
    piece.offset = chunk.offset;
    piece.stored = chunk.size;
    visit(piece);
  }
}

Unwritten ChunkedStorage::unwritten() const {
  uint64_t chunks = 1;
  for (const uint64_t extent : grid_) chunks *= extent;  // at most one for each element
  return {chunks - index().size(), chunks};
}

Storage::Place ChunkedStorage::place() const {
  uint64_t first = UINT64_MAX;
  for (const StoredChunk& chunk : index()) first = std::min(first, chunk.offset);
  return {image_->file()->path().string(), first == UINT64_MAX ? 0 : first};
}

ChunkedStorage::Chunk ChunkedStorage::chunk(const StoredChunk& stored) const {
  const uint64_t number = stored.number;
  if (is_streamed(stored)) return {nullptr, stream(stored)};
  if (auto cached = BlockCache::instance().find({id_, number})) return {cached, nullptr};
  if (chunk_bytes_ <= large_chunk) return {decoded(stored), nullptr};
  static std::mutex one_at_a_time;  // of the process
  const std::lock_guard lock(one_at_a_time);
  if (auto cached = BlockCache::instance().find({id_, number})) return {cached, nullptr};
  const MemoryBudget& budget = image_->memory();
  if (const uint64_t bytes = decoding_bytes(dataset_.filters, chunk_bytes_); bytes > budget.limit()) {
    fail(Errc::format,
         "a chunk of {} needs {} of memory, and the limit for a file of {} is {}; rewrite the file with "
         "smaller chunks (h5repack -l CHUNK=...)",
         format_size(chunk_bytes_), format_size(bytes), format_size(image_->file()->size()),
         format_size(budget.limit()));
  }
  return {decoded(stored), nullptr};
}

bool ChunkedStorage::is_streamed(const StoredChunk& stored) const {
  return chunk_bytes_ > large_chunk && dataset_.filters.size() == 1 &&
         dataset_.filters.front().id == Filter::deflate && stored.mask == 0;
}

StoragePtr ChunkedStorage::stream(const StoredChunk& stored) const {
  const std::lock_guard lock(mutex_);
  if (!streams_.contains(stored.number) && streams_.size() >= most_streams) streams_.clear();
  StoragePtr& stream = streams_[stored.number];
  if (!stream) {
    stream = inflated_storage(image_->file(), image_->file()->slice(stored.offset, stored.size, "a chunk"),
                              Deflated::zlib, chunk_bytes_, name_of(stored));
  }
  return stream;
}

std::string ChunkedStorage::name_of(const StoredChunk& stored) {
  return fmt::format("chunk {} at byte {}", stored.number, stored.offset);
}

BlockCache::Block ChunkedStorage::decoded(const StoredChunk& stored) const {
  const ByteView bytes = image_->file()->slice(stored.offset, stored.size, "a chunk");
  auto block = within(name_of(stored), [&] {
    // Stored without filters it may be longer than needed.
    const ByteView in =
        dataset_.filters.empty() ? bytes.first(std::min<uint64_t>(bytes.size(), chunk_bytes_)) : bytes;
    return std::make_shared<const Bytes>(decode_chunk(dataset_.filters, stored.mask, in, chunk_bytes_));
  });
  BlockCache::instance().put({id_, stored.number}, block);
  return block;
}

void ChunkedStorage::read(uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset) fail(Errc::internal, "read beyond a dataset");
  std::vector<uint64_t> at(extents_.size(), 0);
  read_range(0, at, offset, out);
}

void ChunkedStorage::read_range(size_t dim, std::vector<uint64_t>& at, uint64_t begin,
                                std::span<std::byte> out) const {
  const uint64_t stride = strides_[dim];
  // Part of an index, whole indices, part of an index: only the parts descend to the next dimension.
  while (!out.empty()) {
    const uint64_t index = begin / stride;
    const uint64_t skip = begin % stride;
    if (skip == 0 && out.size() >= stride) {
      const uint64_t count = out.size() / stride;
      read_box({at, dim, index, index + count}, out.first(count * stride));
      out = out.subspan(count * stride);
      begin += count * stride;
    } else {
      const uint64_t count = std::min<uint64_t>(out.size(), stride - skip);
      at[dim] = index;
      read_range(dim + 1, at, skip, out.first(count));
      out = out.subspan(count);
      begin += count;
    }
  }
}

void ChunkedStorage::read_box(const Box& box, std::span<std::byte> out) const {
  const size_t rank = extents_.size();
  // Chunks are numbered in C order: those of the box are [begin, end).
  uint64_t begin = 0;
  uint64_t last = 0;
  for (size_t d = 0; d < rank; ++d) {
    const uint64_t from = d < box.dim ? box.at[d] / chunk_[d] : d == box.dim ? box.first / chunk_[d] : 0;
    const uint64_t to = d < box.dim ? from : d == box.dim ? (box.last - 1) / chunk_[d] : grid_[d] - 1;
    begin = begin * grid_[d] + from;
    last = last * grid_[d] + to;
  }
  const uint64_t end = last + 1;
  const auto [first, behind] = stored_between(begin, end);
  // There may be far more chunks that were never written than bytes in the file.
  if (static_cast<uint64_t>(behind - first) < end - begin)
    put_fill(box.dim + 1 == rank ? box.first % dataset_.type.size : 0, out);
  std::vector<uint64_t> cell(rank);
  for (auto stored = first; stored != behind; ++stored) {
    uint64_t number = stored->number;
    for (size_t d = rank; d-- > 0; number /= grid_[d]) cell[d] = number % grid_[d];
    copy_chunk(box, cell, *stored, out);
  }
}

std::pair<ChunkedStorage::Stored, ChunkedStorage::Stored> ChunkedStorage::stored_between(uint64_t begin,
                                                                                         uint64_t end) const {
  const auto at = [this](uint64_t number) {
    return std::lower_bound(index().begin(), index().end(), number,
                            [](const StoredChunk& chunk, uint64_t n) { return chunk.number < n; });
  };
  return {at(begin), at(end)};
}

void ChunkedStorage::copy_chunk(const Box& box, const std::vector<uint64_t>& cell, const StoredChunk& stored,
                                std::span<std::byte> out) const {
  const size_t rank = extents_.size();
  const Chunk data = chunk(stored);
  // The intersection of the chunk with the box.
  std::vector<uint64_t> first(rank);
  std::vector<uint64_t> last(rank);
  for (size_t d = 0; d < rank; ++d) {
    const uint64_t begin = cell[d] * chunk_[d];
    const uint64_t end = std::min(begin + chunk_[d], extents_[d]);
    first[d] = d < box.dim ? box.at[d] : d == box.dim ? std::max(begin, box.first) : begin;
    last[d] = d < box.dim ? box.at[d] + 1 : d == box.dim ? std::min(end, box.last) : end;
  }
  const uint64_t run = last[rank - 1] - first[rank - 1];
  std::vector<uint64_t> at = first;
  while (true) {
    uint64_t source = 0;
    uint64_t target = 0;
    for (size_t d = 0; d < rank; ++d) {
      source = source * chunk_[d] + (at[d] - cell[d] * chunk_[d]);
      if (d >= box.dim) target += (at[d] - (d == box.dim ? box.first : 0)) * strides_[d];
    }
    const std::span<std::byte> piece = out.subspan(target, run);
    if (data.bytes) {
      std::memcpy(piece.data(), data.bytes->data() + source, run);
    } else {
      data.stream->read(source, piece);
    }
    size_t d = rank - 1;
    while (d-- > 0) {
      if (++at[d] < last[d]) break;
      at[d] = first[d];
      if (d == 0) return;
    }
    if (rank == 1) return;
  }
}

void ChunkedStorage::put_fill(uint64_t phase, std::span<std::byte> out) const {
  if (dataset_.fill.empty()) {
    std::fill(out.begin(), out.end(), std::byte{0});
    return;
  }
  for (std::byte& byte : out) {
    byte = dataset_.fill[phase];
    if (++phase == dataset_.fill.size()) phase = 0;
  }
}

}  // namespace cbk::hdf5
