#include "host/formats/tensorflow/slice_key.hpp"

#include <bit>

namespace cbk::tensorflow {
namespace {

constexpr char zero = '\0';
constexpr char top = '\xff';

/// Appends the number of significant bytes, then these bytes, most significant first.
void append_number(std::string& out, uint64_t value) {
  const int bytes = (64 - std::countl_zero(value) + 7) / 8;
  out += static_cast<char>(bytes);
  for (int i = bytes; i-- > 0;) out += static_cast<char>(value >> (8 * i));
}

/// The bytes 00 and ff are escaped, so that the end 00 01 sorts before any longer text.
void append_text(std::string& out, std::string_view text) {
  for (const char c : text) {
    out += c;
    if (c == zero) out += top;
    if (c == top) out += zero;
  }
  out += zero;
  out += '\1';
}

/// Big-endian two's complement of n bytes; the first n + 1 bits are sign and length: n ones (zeros
/// when negative), then the other.
void append_signed(std::string& out, int64_t value) {
  const auto magnitude = static_cast<uint64_t>(value < 0 ? ~value : value);
  const int bits = 64 - std::countl_zero(magnitude) + 1;  // with the sign
  const int length = (bits + 6) / 7;
  std::string bytes(static_cast<size_t>(length), value < 0 ? top : zero);
  for (int i = 0; i < length && i < 8; ++i) {
    bytes[static_cast<size_t>(length - 1 - i)] = static_cast<char>(value >> (8 * i));
  }
  for (int bit = 0; bit < length; ++bit) {
    bytes[static_cast<size_t>(bit / 8)] =
        static_cast<char>(bytes[static_cast<size_t>(bit / 8)] ^ (0x80 >> bit % 8));
  }
  out += bytes;
}

}  // namespace

std::string slice_key(std::string_view name, const std::vector<Extent>& extents) {
  std::string key;
  append_number(key, 0);
  append_text(key, name);
  append_number(key, extents.size());
  for (const Extent& extent : extents) {
    append_signed(key, extent.length ? extent.start : 0);
    append_signed(key, extent.length.value_or(-1));
  }
  return key;
}

bool is_slice_key(std::string_view key) {
  return key.starts_with(zero);
}

std::optional<std::string> name_in_slice_key(std::string_view key) {
  std::string name;
  for (size_t i = 1; i + 1 < key.size(); ++i) {
    const char c = key[i];
    if (c == zero && key[i + 1] == '\1') return name;
    if (c == zero || c == top) {
      if (key[i + 1] != (c == zero ? top : zero)) return std::nullopt;
      ++i;
    }
    name += c;
  }
  return std::nullopt;
}

}  // namespace cbk::tensorflow
