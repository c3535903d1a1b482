// Pictures as PNG files.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "host/base/bytes.hpp"

namespace cbk {

struct Colour {
  uint8_t red = 0;
  uint8_t green = 0;
  uint8_t blue = 0;
};

/// A picture of up to 256 colours. Each byte is the palette index of a pixel, row by row. Errors: `value` if
/// the size does not match the pixels, or if the palette is empty or lacks a colour.
std::string png(int64_t width, int64_t height, std::span<const Colour> palette, ByteView pixels);

}  // namespace cbk
