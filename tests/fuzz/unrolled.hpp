// Long inputs out of short ones, for what only many of the same can find.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace cbk {

/// Pieces of [count as a power of two, length, bytes], each repeated; at most `most` bytes.
inline std::string unrolled(std::string_view pieces, size_t most) {
  std::string out;
  while (pieces.size() > 2) {
    const size_t length = std::min<size_t>(static_cast<uint8_t>(pieces[1]), pieces.size() - 2);
    const std::string_view piece = pieces.substr(2, length);
    const size_t count = size_t{1} << (static_cast<uint8_t>(pieces[0]) % 24);
    for (size_t i = 0; i < count && out.size() + piece.size() <= most && !piece.empty(); ++i) out += piece;
    pieces.remove_prefix(2 + length);
  }
  return out;
}

}  // namespace cbk
