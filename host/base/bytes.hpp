// Byte-level helpers: little-endian loads and stores, overflow-checked arithmetic, sizes for people.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"

namespace cbk {

static_assert(std::endian::native == std::endian::little, "cbk supports little-endian hosts");

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

/// Reads a little-endian T at the start of `bytes`; the caller has checked the length.
template <typename T>
T load_le(const void* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <typename T>
void store_le(void* bytes, T value) {
  std::memcpy(bytes, &value, sizeof value);
}

template <typename T>
void append_le(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

inline std::string_view as_text(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline ByteView as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// a * b and a + b; an overflow is a `format` error that names `what`.
inline uint64_t checked_mul(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) fail(Errc::format, "{} is too large", what);
  return result;
}
inline uint64_t checked_add(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) fail(Errc::format, "{} is too large", what);
  return result;
}

inline uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

/// "10GB" → 10^10, "512MiB" → 2^29, "4096" → 4096, "256M" as MiB. Units: B KB MB GB TB (powers of 1000),
/// KiB MiB GiB TiB and K M G T (powers of 1024), any case. A fraction is refused.
uint64_t parse_size(std::string_view text);

/// "4.0 GiB", "17 B".
std::string format_size(uint64_t bytes);

}  // namespace cbk
