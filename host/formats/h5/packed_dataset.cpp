#include "host/formats/h5/packed_dataset.hpp"

#include <algorithm>
#include <array>

#include "host/formats/hdf5/filters.hpp"

namespace cbk::h5 {
namespace {

/// Bytes of a chunk: large for the compressor, small for partial reads.
constexpr int64_t usual_chunk = 1 << 20;

}  // namespace

PackedDataset::PackedDataset(Compression compression, const Tensor& tensor, PackedFile& place)
    : compression_(compression),
      shape_(tensor.shape()),
      itemsize_(static_cast<uint32_t>(size_of(tensor.dtype()))),
      extents_(shape_.size() + 1, 1),
      place_(place) {
  extents_.back() = itemsize_;
  const int64_t most = usual_chunk / itemsize_;
  // Whole inner dimensions as far as they fit, then a part of the next one.
  for (along_ = shape_.size() - 1; along_ > 0 && chunk_elements_ * shape_[along_] <= most; --along_) {
    extents_[along_] = static_cast<uint32_t>(shape_[along_]);
    chunk_elements_ *= shape_[along_];
  }
  const int64_t rows = std::clamp<int64_t>(most / chunk_elements_, 1, shape_[along_]);
  extents_[along_] = static_cast<uint32_t>(rows);
  chunk_elements_ *= rows;
}

Item::Pieces PackedDataset::pieces() {
  return {this, chunk_elements_, chunk_elements_ / extents_[along_] * shape_[along_]};
}

Bytes PackedDataset::pack(ByteView piece) const {
  Bytes chunk(static_cast<size_t>(chunk_elements_) *
              itemsize_);  // the last one of a row is filled up with zeros
  std::ranges::copy(piece, chunk.begin());
  chunk = hdf5::shuffled(chunk, itemsize_);
  Bytes packed;
  switch (compression_) {
    case Compression::deflate:
      packed = hdf5::deflated(chunk);
      break;
    case Compression::lz4:
      packed = hdf5::lz4_packed(chunk);
      break;
    case Compression::zstd:
      packed = hdf5::zstd_packed(chunk);
      break;
    case Compression::none:
      return chunk;
  }
  return packed.size() < chunk.size() ? packed : chunk;
}

hdf5::Builder::Chunk PackedDataset::next_chunk() const {
  hdf5::Builder::Chunk chunk;
  chunk.start.resize(shape_.size());
  uint64_t rest = chunks_.size();
  for (size_t d = shape_.size(); d-- > 0;) {
    const uint64_t count = (static_cast<uint64_t>(shape_[d]) + extents_[d] - 1) / extents_[d];
    chunk.start[d] = rest % count * extents_[d];
    rest /= count;
  }
  return chunk;
}

void PackedDataset::append(Bytes packed) {
  hdf5::Builder::Chunk chunk = next_chunk();
  chunk.address = place_.end;
  chunk.size = static_cast<uint32_t>(packed.size());
  // A chunk that does not get smaller is stored uncompressed, without the second filter.
  chunk.mask = packed.size() < static_cast<size_t>(chunk_elements_) * itemsize_ ? 0 : 2;
  place_.file->write(place_.end, packed);
  place_.end += packed.size();
  chunks_.push_back(std::move(chunk));
}

void PackedDataset::describe(hdf5::Builder& builder, hdf5::HeaderBuilder& header) const {
  using hdf5::Filter;
  const Filter shuffle{Filter::shuffle, true, {itemsize_}};
  const Filter pack = compression_ == Compression::deflate
                          ? Filter{Filter::deflate, true, {hdf5::deflate_level}}
                      : compression_ == Compression::lz4 ? Filter{Filter::lz4, true, {0}}
                                                         : Filter{Filter::zstd, true, {hdf5::zstd_level}};
  header.add(hdf5::MessageType::filters, hdf5::encode_filters(std::array{shuffle, pack}));
  header.add(hdf5::MessageType::layout,
             hdf5::encode_chunked(builder.add_chunk_tree(chunks_, extents_), extents_));
}

}  // namespace cbk::h5
