// Reading zip archives by their central directory: stored and deflated members, zip64, checksums.
// A Archive is immutable and thread-safe; storages keep the mapped file alive.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "host/base/hash.hpp"
#include "host/base/memory_budget.hpp"
#include "host/tensor/storage.hpp"

namespace cbk::zip {

struct Entry {
  std::string_view name;  // in the mapped directory
  uint64_t header_offset = 0;
  uint64_t compressed_size = 0;
  uint64_t size = 0;
  uint32_t crc32 = 0;
  uint16_t method = 0;  // 0 stored, 8 deflated
};

/// The whole content of a member: in the file, or unpacked.
struct Content {
  [[nodiscard]] std::string_view text() const { return as_text(unpacked ? ByteView(*unpacked) : stored); }

  ByteView stored;
  std::optional<Bytes> unpacked;
  MemoryLoan memory;  // of what is unpacked
};

class Archive {
 public:
  /// The archive must be the whole file: from its first member to its end record, with nothing before or
  /// after.
  /// `salvage`: if the directory at the end of the file is missing, the members are found by their headers;
  /// the last one may be truncated; and data after the end record is ignored. Errors: `format` for a damaged
  /// directory, two members with one name, or other data in the file; `unsupported` for encryption and other
  /// methods.
  explicit Archive(std::shared_ptr<const MappedFile> file, MemoryPtr memory = {}, bool salvage = false);

  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  /// Whether the file ends before this member does.
  [[nodiscard]] bool is_cut(const Entry& entry) const;
  /// Whether the members were found by their headers.
  [[nodiscard]] bool is_salvaged() const { return is_salvaged_; }
  /// In a salvaged archive: the first byte where members may be that nobody knows of; nullopt if there is
  /// none.
  [[nodiscard]] std::optional<uint64_t> unknown_from() const { return unknown_from_; }
  [[nodiscard]] const Entry* find(std::string_view name) const;
  /// False if the writer left checksums out: all of them are 0, but those of the data are not.
  [[nodiscard]] bool has_checksums() const { return has_checksums_; }

  /// The whole member, checked against its CRC-32. Larger than `limit`, or unpacked beyond the file's budget,
  /// is a `format` error.
  [[nodiscard]] Content read(const Entry& entry, uint64_t limit) const;
  /// The member as a lazy storage with its CRC-32; nothing is read yet.
  [[nodiscard]] StoragePtr storage(const Entry& entry) const;
  /// Compares the member's bytes with its CRC-32 (`format` error).
  void verify(const Entry& entry) const;
  /// The same for all members of an archive of up to 16 MiB; larger ones are checked as they are copied.
  void verify_if_small() const;

 private:
  struct Directory {
    uint64_t offset = 0;
    uint64_t size = 0;
    uint64_t count = 0;
  };
  [[nodiscard]] std::optional<Directory> find_directory(bool may_be_followed) const;
  [[nodiscard]] uint64_t place_of_end64(uint64_t locator_at) const;
  [[nodiscard]] Directory directory_of(uint64_t at) const;
  void refuse_prefix() const;
  void add(const Entry& entry);
  void scan_headers();
  void read_directory(const Directory& directory);
  void refuse_overlaps() const;
  [[nodiscard]] ByteView packed(const Entry& entry) const;
  [[nodiscard]] uint32_t crc_of_member(const Entry& entry) const;
  [[nodiscard]] bool checksums_are_left_out() const;

  std::shared_ptr<const MappedFile> file_;
  MemoryPtr memory_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t, KeyedHash> by_name_;
  bool has_checksums_ = true;
  bool is_salvaged_ = false;
  std::optional<uint64_t> unknown_from_;
};

}  // namespace cbk::zip
