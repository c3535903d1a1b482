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

/// A picture of up to 256 colours: a byte for each pixel, row by row, is its place in the palette. Errors:
/// `value` of a size that is not that of the pixels, of an empty palette or of one that lacks a colour.
std::string png(int64_t width, int64_t height, std::span<const Colour> palette, ByteView pixels);

}  // namespace cbk
