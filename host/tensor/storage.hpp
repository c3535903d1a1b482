// Where tensor bytes live. A storage is immutable, thread-safe, and shared: two tensors over one storage are
// tied or views of each other, and stay so when a format can say it.
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

/// How the elements of a storage are stored where that is not their dtype: in blocks of several elements.
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
  /// All bytes, when they can be addressed (a mapping, memory); empty when they must be read (compressed
  /// chunks).
  [[nodiscard]] virtual ByteView view() const { return {}; }
  /// Copies bytes [offset, offset + out.size()).
  virtual void read(uint64_t offset, std::span<std::byte> out) const = 0;
  /// Why no byte can be read, where that is known before; empty: they can.
  [[nodiscard]] virtual std::string_view problem() const { return {}; }
  /// nullptr: the elements are stored as they are.
  [[nodiscard]] virtual const Encoding* encoding() const { return nullptr; }
  /// Whoever has read what he wanted asks whether it was right: a format with a checksum over all bytes reads
  /// the rest of them now. Errors: `format`.
  virtual void verify() const {}
  /// The same for whoever copies: also where reading a part should not cost reading all.
  virtual void verify_whole() const { verify(); }
  /// A hint that this range will not be read again soon.
  virtual void drop(uint64_t /*offset*/, uint64_t /*length*/) const noexcept {}

  /// The file the bytes come from ("" for memory) and where they start in it: for messages, and the order of
  /// reading.
  struct Place {
    std::string file;
    uint64_t offset = 0;
  };
  [[nodiscard]] virtual Place place() const { return {}; }
  /// Adds all files that the bytes come from.
  virtual void add_files(SourceFiles& /*files*/) const {}
  /// CRC-32 (zip's polynomial) of all bytes, where the source file already has it.
  [[nodiscard]] virtual std::optional<uint32_t> crc32() const { return std::nullopt; }
};

/// A range of a mapped file.
StoragePtr map_storage(std::shared_ptr<const MappedFile> file, uint64_t offset, uint64_t size);

/// The same; a range that is not in the file cannot be read: the file is cut short. For what is salvaged.
StoragePtr whole_or_lost(std::shared_ptr<const MappedFile> file, uint64_t offset, uint64_t size);

/// Bytes in memory: small tensors that a script or a pickle made.
StoragePtr memory_storage(Bytes bytes);

/// Bytes that cannot be had: reading them is the error `why`.
StoragePtr unreadable_storage(uint64_t size, Error why);

/// Bytes [offset, offset + size) of another storage. Errors: `format` beyond its end.
StoragePtr storage_part(StoragePtr storage, uint64_t offset, uint64_t size);

/// Big-endian elements of `itemsize` bytes, swapped as they are read.
StoragePtr swapped_storage(StoragePtr storage, uint32_t itemsize);

}  // namespace cbk
