// A dataset of compressed chunks, each a run of whole rows.
#pragma once

#include <vector>

#include "host/formats/hdf5/builder.hpp"
#include "host/formats/writer.hpp"

namespace cbk::h5 {

/// The place of the next chunk in a file.
struct PackedFile {
  StagedFile* file = nullptr;
  uint64_t end = 0;
};

/// Not thread-safe except for `pack`. Numbers are shuffled (the first bytes of all elements together) before
/// compression, because exponents repeat more than mantissas do.
class PackedDataset final : public PieceSink {
 public:
  /// `tensor`: of rank 1 and more, not empty. `place` outlives it.
  PackedDataset(Compression compression, const Tensor& tensor, PackedFile& place);

  [[nodiscard]] Item::Pieces pieces();
  [[nodiscard]] Bytes pack(ByteView piece) const override;
  void append(Bytes packed) override;
  /// Adds layout and filters to the dataset's header, once all chunks are written.
  void describe(hdf5::Builder& builder, hdf5::HeaderBuilder& header) const;

 private:
  [[nodiscard]] hdf5::Builder::Chunk next_chunk() const;

  Compression compression_;
  Shape shape_;
  uint32_t itemsize_;
  std::vector<uint32_t> extents_;  // of a chunk, and the bytes of an element
  int64_t chunk_elements_ = 1;
  size_t along_ = 0;  // the dimension along which rows are cut
  std::vector<hdf5::Builder::Chunk> chunks_;
  PackedFile& place_;
};

}  // namespace cbk::h5
