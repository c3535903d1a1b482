// Digests of 32 bytes, and their text.
#pragma once

#include <array>
#include <string>

#include "host/base/bytes.hpp"

namespace cbk {

using Digest = std::array<std::byte, 32>;

/// In lower-case hex.
std::string to_hex(ByteView bytes);

}  // namespace cbk
