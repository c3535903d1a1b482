// The bytes of an HDF5 file, and a limit on how much of them its structures may read.
//
// Nothing in a file is trusted. Every structure is read through `Image::bytes`, which checks the place
// against the file and charges the length to a budget proportional to the file's size. Structures that refer
// to each other in circles, or repeatedly, exhaust it instead of running forever.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "host/base/file.hpp"
#include "host/base/memory_budget.hpp"
#include "host/formats/hdf5/superblock.hpp"

namespace cbk::hdf5 {

/// Bytes [begin, end) of a file.
struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Thread-safe.
class Image {
 public:
  /// `may_be_cut`: the file may be shorter than it states.
  explicit Image(std::shared_ptr<const MappedFile> file, MemoryPtr memory = {}, bool may_be_cut = false);

  [[nodiscard]] const std::shared_ptr<const MappedFile>& file() const { return file_; }
  [[nodiscard]] const Superblock& superblock() const { return superblock_; }
  [[nodiscard]] FieldSizes sizes() const { return superblock_.sizes; }
  [[nodiscard]] uint64_t base() const { return superblock_.base; }
  [[nodiscard]] uint64_t root() const { return superblock_.root; }
  /// Metadata at an address; charged to the budget.
  [[nodiscard]] ByteView bytes(uint64_t address, uint64_t length, const char* what) const;
  /// Up to `length` bytes, as far as the file has them.
  [[nodiscard]] ByteView bytes_up_to(uint64_t address, uint64_t length, const char* what) const;
  /// Metadata that begins with `signature` and ends with its checksum; the cursor is after the
  /// signature. Its bytes are those of a structure.
  [[nodiscard]] Cursor checked(uint64_t address, uint64_t length, std::string_view signature,
                               const char* what) const;
  [[nodiscard]] Cursor cursor(uint64_t address, uint64_t length, const char* what) const {
    return {bytes(address, length, what), sizes(), what};
  }
  void charge(uint64_t work) const;
  /// Fails for elements at bytes [begin, end) of the file that would be in the superblock.
  void refuse_superblock(uint64_t begin, uint64_t end) const;
  /// Fails (`format`) for ranges that share bytes with each other, or with others that were claimed before.
  /// An owner, such as the address of an index of chunks, claims its ranges once.
  void claim(std::optional<uint64_t> owner, std::vector<Range> ranges) const;
  /// Claims all bytes of a structure at an address, also those that it does not use. Structures may be
  /// claimed repeatedly, but not if they are in data that was claimed.
  void claim_structure(uint64_t address, uint64_t length) const;
  /// The sizes of nodes that the superblock's extension has.
  void set_ranks(GroupRanks ranks, uint16_t chunk_rank);
  /// The `size` bytes that `make` unpacks from the block at an address: made once, and kept as long as the
  /// image.
  [[nodiscard]] ByteView unpacked(uint64_t address, uint64_t size, const std::function<Bytes()>& make) const;
  /// The budget for content of the file that is kept.
  [[nodiscard]] const MemoryPtr& shared_memory() const { return memory_; }
  [[nodiscard]] MemoryBudget& memory() const { return *memory_; }

 private:
  std::shared_ptr<const MappedFile> file_;
  Superblock superblock_;
  MemoryPtr memory_;
  uint64_t budget_ = 0;
  mutable std::atomic<uint64_t> spent_{0};
  mutable std::mutex claiming_;
  mutable std::set<uint64_t> owners_;
  mutable std::map<uint64_t, uint64_t> claimed_;     // ends by beginnings; neighbours are one
  mutable std::map<uint64_t, uint64_t> structures_;  // the same
  mutable std::mutex unpacking_;
  mutable std::map<uint64_t, Bytes> unpacked_;  // by address
};

}  // namespace cbk::hdf5
