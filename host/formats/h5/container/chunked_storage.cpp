#include "host/formats/h5/container/chunked_storage.hpp"

#include <algorithm>
#include <list>
#include <map>

namespace cbk::h5 {
namespace {

/// Decoded chunks, the least recently used go first. One for the process, so that its memory is bounded.
class ChunkCache {
 public:
  using Key = std::pair<uint64_t, uint64_t>;  // storage, chunk

  std::shared_ptr<const Bytes> find(Key key) {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->second;
  }

  void put(Key key, std::shared_ptr<const Bytes> chunk) {
    const std::lock_guard lock(mutex_);
    if (places_.contains(key)) return;
    total_ += chunk->size();
    entries_.emplace_front(key, std::move(chunk));
    places_[key] = entries_.begin();
    while (total_ > limit && entries_.size() > 1) erase(places_.find(entries_.back().first));
  }

  void forget(uint64_t storage) {
    const std::lock_guard lock(mutex_);
    auto at = places_.lower_bound({storage, 0});
    while (at != places_.end() && at->first.first == storage) at = erase(at);
  }

 private:
  using Entries = std::list<std::pair<Key, std::shared_ptr<const Bytes>>>;
  using Places = std::map<Key, Entries::iterator>;
  static constexpr uint64_t limit = uint64_t{32} << 20;

  Places::iterator erase(Places::iterator place) {
    total_ -= place->second->second->size();
    entries_.erase(place->second);
    return places_.erase(place);
  }

  std::mutex mutex_;
  Entries entries_;
  Places places_;
  uint64_t total_ = 0;
};

ChunkCache& cache() {
  static ChunkCache instance;
  return instance;
}

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

/// More than any filter could have packed into the file: such a size is not believed beyond this much.
constexpr uint64_t always_believed = uint64_t{1} << 30;
constexpr uint64_t best_ratio = 1040;

}  // namespace

/// Indices [first, last) of dimension `dim` below the fixed ones in `at`, and everything of the dimensions
/// behind.
struct ChunkedStorage::Box {
  const std::vector<uint64_t>& at;
  size_t dim;
  uint64_t first;
  uint64_t last;
};

ChunkedStorage::ChunkedStorage(std::shared_ptr<const Image> image, Dataset dataset)
    : image_(std::move(image)), dataset_(std::move(dataset)), id_(next_id()) {
  if (dataset_.layout.kind != Layout::Kind::chunked) {  // nothing allocated: one grid cell that is absent
    dataset_.layout.chunk.clear();
    for (uint64_t extent : dataset_.space.extents)
      dataset_.layout.chunk.push_back(std::max<uint64_t>(extent, 1));
  } else {
    check_filters(dataset_.filters);
    chunk_bytes_ = h5::chunk_bytes(dataset_);
  }
  size_ = checked_mul(dataset_.space.count(), dataset_.type.size, "a dataset");
  const uint64_t file_size = image_->file()->size();
  if (size_ > always_believed && size_ / best_ratio > file_size) {
    damaged("a dataset of {} in a file of {}", format_size(size_), format_size(file_size));
  }
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
  cache().forget(id_);
}

const std::vector<StoredChunk>& ChunkedStorage::index() const {
  std::call_once(indexed_, [this] { index_ = read_chunk_index(*image_, dataset_); });
  return index_;
}

Storage::Place ChunkedStorage::place() const {
  uint64_t first = UINT64_MAX;
  for (const StoredChunk& chunk : index()) first = std::min(first, chunk.offset);
  return {image_->file()->path().string(), first == UINT64_MAX ? 0 : first};
}

std::shared_ptr<const Bytes> ChunkedStorage::chunk(uint64_t number) const {
  const auto& chunks = index();
  const auto found = std::lower_bound(chunks.begin(), chunks.end(), number,
                                      [](const StoredChunk& chunk, uint64_t n) { return chunk.number < n; });
  if (found == chunks.end() || found->number != number) return nullptr;
  if (auto cached = cache().find({id_, number})) return cached;
  const ByteView stored = image_->file()->slice(found->offset, found->size, "a chunk");
  auto decoded = within(fmt::format("chunk {} at byte {}", number, found->offset), [&] {
    // Stored without filters it may be longer than needed.
    const ByteView in =
        dataset_.filters.empty() ? stored.first(std::min<uint64_t>(stored.size(), chunk_bytes_)) : stored;
    return std::make_shared<const Bytes>(decode_chunk(dataset_.filters, found->mask, in, chunk_bytes_));
  });
  cache().put({id_, number}, decoded);
  return decoded;
}

void ChunkedStorage::read(uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset) fail(Errc::internal, "read beyond a dataset");
  std::vector<uint64_t> at(extents_.size(), 0);
  read_range(0, at, offset, out);
}

void ChunkedStorage::read_range(size_t dim, std::vector<uint64_t>& at, uint64_t begin,
                                std::span<std::byte> out) const {
  const uint64_t stride = strides_[dim];
  // A part of one index, whole indices, a part of one index: only the parts go down a dimension.
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
  std::vector<uint64_t> from(rank);
  std::vector<uint64_t> to(rank);
  for (size_t d = 0; d < rank; ++d) {
    from[d] = d < box.dim ? box.at[d] / chunk_[d] : d == box.dim ? box.first / chunk_[d] : 0;
    to[d] = d < box.dim ? from[d] + 1 : d == box.dim ? (box.last - 1) / chunk_[d] + 1 : grid_[d];
  }
  std::vector<uint64_t> cell = from;
  while (true) {
    uint64_t number = 0;
    for (size_t d = 0; d < rank; ++d) number = number * grid_[d] + cell[d];
    copy_chunk(box, cell, number, out);
    size_t d = rank;
    while (d-- > 0) {
      if (++cell[d] < to[d]) break;
      cell[d] = from[d];
      if (d == 0) return;
    }
  }
}

void ChunkedStorage::copy_chunk(const Box& box, const std::vector<uint64_t>& cell, uint64_t number,
                                std::span<std::byte> out) const {
  const size_t rank = extents_.size();
  const auto data = chunk(number);
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
    if (data) {
      std::memcpy(piece.data(), data->data() + source, run);
    } else {
      put_fill(at[rank - 1] % dataset_.type.size, piece);
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

}  // namespace cbk::h5
