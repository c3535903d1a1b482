// The small encodings of H5 checkpoints: hex text, and percent-encoded dataset names.
#pragma once

#include <string>
#include <string_view>

namespace cbk::h5 {

std::string to_hex(std::string_view bytes);

/// A `format` error for anything but pairs of hex digits.
std::string from_hex(std::string_view hex);

/// Everything but letters, digits and "_.-~" as %XX.
std::string percent_encode(std::string_view text);

/// A % that is not followed by two hex digits is kept.
std::string percent_decode(std::string_view text);

}  // namespace cbk::h5
