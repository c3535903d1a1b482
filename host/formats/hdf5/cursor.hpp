// Fields of an HDF5 file: addresses, checksums, and a cursor that cannot leave its range.
#pragma once

#include "host/base/bytes.hpp"

namespace cbk::hdf5 {

inline constexpr uint64_t undefined_address = UINT64_MAX;

template <typename... Args>
[[noreturn]] void damaged(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(Errc::format, "damaged HDF5 file: " + fmt::format(format, std::forward<Args>(args)...));
}

/// The sizes of addresses and lengths in this file.
struct FieldSizes {
  unsigned address = 8;
  unsigned length = 8;
};

/// Reads little-endian fields one after the other; reading past the end is a `format` error that names
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

/// The checksum of HDF5's newer structures.
uint32_t lookup3(ByteView bytes);

}  // namespace cbk::hdf5
