// The bytes of an HDF5 file: superblock, addresses, and a cursor that cannot leave what it was given.
//
// Nothing in a file is trusted. Every structure is read through `Image::bytes`, which checks the place
// against the file and charges the length to a budget proportional to the file's size: structures that refer
// to each other in circles, or many times over, run out of it instead of running forever.
#pragma once

#include <atomic>
#include <memory>

#include "host/base/file.hpp"

namespace cbk::h5 {

inline constexpr uint64_t undefined_address = UINT64_MAX;

template <typename... Args>
[[noreturn]] void damaged(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(Errc::format, "damaged HDF5 file: " + fmt::format(format, std::forward<Args>(args)...));
}

/// How many bytes addresses and lengths take in this file.
struct FieldSizes {
  unsigned address = 8;
  unsigned length = 8;
};

/// Reads little-endian fields one after the other; running over the end is a `format` error that names
/// `what`.
class Cursor {
 public:
  Cursor(ByteView bytes, FieldSizes sizes, const char* what) : bytes_(bytes), sizes_(sizes), what_(what) {}

  uint8_t u8() { return load<uint8_t>(); }
  uint16_t u16() { return load<uint16_t>(); }
  uint32_t u32() { return load<uint32_t>(); }
  uint64_t u64() { return load<uint64_t>(); }
  /// A number of `size` bytes, at most 8.
  uint64_t number(unsigned size);
  uint64_t length() { return number(sizes_.length); }
  /// All bits set is `undefined_address`.
  uint64_t address();
  ByteView take(uint64_t count);
  void skip(uint64_t count) { take(count); }
  /// Text up to a NUL, which is consumed.
  std::string_view text();
  void expect(std::string_view signature);
  /// Forward to a multiple of 8 bytes from the start.
  void align8() { skip(align_up(position_, 8) - position_); }
  [[nodiscard]] uint64_t position() const { return position_; }
  [[nodiscard]] uint64_t remaining() const { return bytes_.size() - position_; }
  [[nodiscard]] FieldSizes sizes() const { return sizes_; }

 private:
  template <typename T>
  T load() {
    return load_le<T>(take(sizeof(T)).data());
  }
  ByteView bytes_;
  uint64_t position_ = 0;
  FieldSizes sizes_;
  const char* what_;
};

/// Where HDF5 looks for its signature: at 0, 512, 1024, 2048, …; `undefined_address` if it is nowhere.
uint64_t find_signature(ByteView bytes);

/// The checksum of HDF5's newer structures.
uint32_t lookup3(ByteView bytes);

/// Thread-safe.
class Image {
 public:
  explicit Image(std::shared_ptr<const MappedFile> file);

  [[nodiscard]] const std::shared_ptr<const MappedFile>& file() const { return file_; }
  [[nodiscard]] FieldSizes sizes() const { return sizes_; }
  [[nodiscard]] uint64_t base() const { return base_; }
  [[nodiscard]] uint64_t root() const { return root_; }
  /// Metadata at an address; charged to the budget.
  [[nodiscard]] ByteView bytes(uint64_t address, uint64_t length, const char* what) const;
  /// As much of `length` as the file has.
  [[nodiscard]] ByteView bytes_up_to(uint64_t address, uint64_t length, const char* what) const;
  /// Metadata that begins with `signature` and ends with its checksum; the cursor stands behind the
  /// signature.
  [[nodiscard]] Cursor checked(uint64_t address, uint64_t length, std::string_view signature,
                               const char* what) const;
  [[nodiscard]] Cursor cursor(uint64_t address, uint64_t length, const char* what) const {
    return {bytes(address, length, what), sizes_, what};
  }
  void charge(uint64_t work) const;

 private:
  std::shared_ptr<const MappedFile> file_;
  FieldSizes sizes_;
  uint64_t base_ = 0;
  uint64_t root_ = undefined_address;
  uint64_t budget_ = 0;
  mutable std::atomic<uint64_t> spent_{0};
};

}  // namespace cbk::h5
