#include "host/base/digest.hpp"

namespace cbk {

std::string to_hex(ByteView bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) {
    out += digits[std::to_integer<size_t>(byte) >> 4];
    out += digits[std::to_integer<size_t>(byte) & 15];
  }
  return out;
}

}  // namespace cbk
