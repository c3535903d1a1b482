// The place of tensor bytes. A storage is immutable, thread-safe, and shared: two tensors over one storage
// are tied or views of each other, and stay so if the format can represent that.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "host/base/bytes.hpp"
#include "host/base/file.hpp"

namespace cbk {

class Storage;
using StoragePtr = std::shared_ptr<const Storage>;

/// The stored form of elements if it is not their dtype: blocks of several elements.
struct Encoding {
  std::string_view name;  // "Q4_K"
  StoragePtr blocks;      // as they are in the file
  uint32_t block_elements = 1;
  uint32_t block_bytes = 1;
};

class Storage {
 public:
  Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  virtual ~Storage() = default;

  [[nodiscard]] virtual uint64_t size() const = 0;  // bytes
  /// All bytes, if they can be addressed (a mapping, memory); empty if they must be read (compressed
  /// chunks).
  [[nodiscard]] virtual ByteView view() const { return {}; }
  /// Copies bytes [offset, offset + out.size()).
  virtual void read(uint64_t offset, std::span<std::byte> out) const = 0;
  /// Why no byte can be read, if that is known in advance; empty if they can.
  [[nodiscard]] virtual std::string_view problem() const { return {}; }
  /// nullptr if the elements are stored in their dtype.
  [[nodiscard]] virtual const Encoding* encoding() const { return nullptr; }
  /// Call after reading: verifies the checksum. A format with a checksum over all bytes reads the rest of
  /// them now.
  /// Errors: `format`.
  virtual void verify() const {}
  /// The same for copies, including storages of which partial reads skip the checksum.
  virtual void verify_whole() const { verify(); }
  /// A hint that all bytes will be read soon, in no order.
  virtual void expect() const noexcept {}
  /// A hint that this range will not be read again soon.
  virtual void drop(uint64_t /*offset*/, uint64_t /*length*/) const noexcept {}

  /// The file the bytes come from ("" for memory) and where they start in it: for messages, and the order of
  /// reading.
  struct Place {
    std::string file;
    uint64_t offset = 0;
  };
  [[nodiscard]] virtual Place place() const { return {}; }
  /// The range of an open file that the bytes are, as they are: for another process, which reads it. None if
  /// they are decoded, or if partial reads verify the checksum. Call `verify_whole` where all are read.
  struct FileRange {
    int fd = -1;
    uint64_t offset = 0;
  };
  [[nodiscard]] virtual std::optional<FileRange> file_range() const { return std::nullopt; }
  /// Adds all files that the bytes come from.
  virtual void add_files(SourceFiles& /*files*/) const {}
  /// CRC-32 (zip's polynomial) of all bytes, if the source file has it.
  [[nodiscard]] virtual std::optional<uint32_t> crc32() const { return std::nullopt; }
};

/// All bytes of a storage: in place if they are addressable, else read into memory.
class WholeBytes {
 public:
  explicit WholeBytes(const Storage& storage) : view_(storage.view()) {
    if (!view_.empty() || storage.size() == 0) return;
    copy_.resize(storage.size());
    storage.read(0, copy_);
    view_ = copy_;
  }
  WholeBytes(const WholeBytes&) = delete;
  WholeBytes& operator=(const WholeBytes&) = delete;
  [[nodiscard]] ByteView view() const { return view_; }

 private:
  Bytes copy_;
  ByteView view_;
};

/// A range of a mapped file.
StoragePtr map_storage(std::shared_ptr<const MappedFile> file, uint64_t offset, uint64_t size);

/// The same; a range beyond the end of a truncated file cannot be read. For salvage.
StoragePtr whole_or_lost(std::shared_ptr<const MappedFile> file, uint64_t offset, uint64_t size);

/// Bytes in memory: small tensors that a script or a pickle made.
StoragePtr memory_storage(Bytes bytes);

/// Unavailable bytes: reading them is the error `why`.
StoragePtr unreadable_storage(uint64_t size, Error why);

/// Bytes [offset, offset + size) of another storage. Errors: `format` beyond its end.
StoragePtr storage_part(StoragePtr storage, uint64_t offset, uint64_t size);

/// Big-endian elements of `itemsize` bytes, swapped as they are read.
StoragePtr swapped_storage(StoragePtr storage, uint32_t itemsize);

}  // namespace cbk
