// A chunked dataset as a storage: chunks are found and decoded on reading.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "host/formats/hdf5/chunk_index.hpp"
#include "host/tensor/block_cache.hpp"
#include "host/tensor/packed_storage.hpp"

namespace cbk::hdf5 {

/// Thread-safe. Chunks that were never written (and contiguous datasets that were never allocated) give the
/// fill value. Decoded chunks of all storages share one small cache; a huge chunk is unpacked in pieces, or
/// refused if its filters need all of it.
class ChunkedStorage final : public PackedStorage {
 public:
  ChunkedStorage(std::shared_ptr<const Image> image, Dataset dataset);
  ~ChunkedStorage() override;

  [[nodiscard]] uint64_t size() const override { return size_; }
  [[nodiscard]] uint64_t stored_size() const override;
  void each_piece(const VisitPiece& visit) const override;
  [[nodiscard]] Unwritten unwritten() const override;
  void read(uint64_t offset, std::span<std::byte> out) const override;
  [[nodiscard]] Place place() const override;
  void add_files(SourceFiles& files) const override { files.insert(image_->file()); }

 private:
  struct Box;
  using Stored = std::vector<StoredChunk>::const_iterator;
  /// The source of a chunk's bytes.
  struct Chunk {
    BlockCache::Block bytes;
    StoragePtr stream;
  };

  [[nodiscard]] const std::vector<StoredChunk>& index() const;
  /// The stored chunks with numbers in [begin, end).
  [[nodiscard]] std::pair<Stored, Stored> stored_between(uint64_t begin, uint64_t end) const;
  [[nodiscard]] Chunk chunk(const StoredChunk& stored) const;
  [[nodiscard]] bool is_streamed(const StoredChunk& stored) const;
  [[nodiscard]] StoragePtr stream(const StoredChunk& stored) const;
  [[nodiscard]] BlockCache::Block decoded(const StoredChunk& stored) const;
  static std::string name_of(const StoredChunk& stored);
  void read_range(size_t dim, std::vector<uint64_t>& at, uint64_t begin, std::span<std::byte> out) const;
  void read_box(const Box& box, std::span<std::byte> out) const;
  void copy_chunk(const Box& box, const std::vector<uint64_t>& cell, const StoredChunk& stored,
                  std::span<std::byte> out) const;
  void put_fill(uint64_t phase, std::span<std::byte> out) const;

  std::shared_ptr<const Image> image_;
  Dataset dataset_;
  uint64_t id_ = 0;
  uint64_t size_ = 0;
  uint64_t chunk_bytes_ = 0;
  // The last dimension is counted in bytes, so that a range may begin anywhere.
  std::vector<uint64_t> extents_;
  std::vector<uint64_t> chunk_;
  std::vector<uint64_t> grid_;
  std::vector<uint64_t> strides_;
  mutable std::once_flag indexed_;
  mutable std::vector<StoredChunk> index_;
  mutable std::mutex mutex_;
  mutable std::map<uint64_t, StoragePtr> streams_;  // of huge chunks, by their numbers
};

}  // namespace cbk::hdf5
