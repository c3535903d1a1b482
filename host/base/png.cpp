#include "host/base/png.hpp"

#include <libdeflate.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string_view>

#include "host/base/error.hpp"

namespace cbk {
namespace {

constexpr int64_t widest = 1 << 15;

std::string number(uint32_t value) {  // big-endian
  std::string out(4, '\0');
  for (size_t i = 0; i < 4; ++i) out[i] = static_cast<char>(value >> (24 - 8 * i));
  return out;
}

std::string chunk(std::string_view type, std::string_view content) {
  std::string checked(type);
  checked += content;
  return number(static_cast<uint32_t>(content.size())) + checked +
         number(libdeflate_crc32(0, checked.data(), checked.size()));
}

std::string deflated(std::string_view text) {
  const std::unique_ptr<libdeflate_compressor, decltype(&libdeflate_free_compressor)> compressor(
      libdeflate_alloc_compressor(6), libdeflate_free_compressor);
  if (!compressor) throw std::bad_alloc();
  std::string out(libdeflate_zlib_compress_bound(compressor.get(), text.size()), '\0');
  out.resize(libdeflate_zlib_compress(compressor.get(), text.data(), text.size(), out.data(), out.size()));
  return out;
}

}  // namespace

std::string png(int64_t width, int64_t height, std::span<const Colour> palette, ByteView pixels) {
  if (width < 1 || height < 1 || width > widest || height > widest ||
      static_cast<uint64_t>(width * height) != pixels.size()) {
    fail(Errc::value, "a picture of {} x {} pixels does not have {} bytes", width, height, pixels.size());
  }
  const bool has_all = std::all_of(pixels.begin(), pixels.end(), [&](std::byte pixel) {
    return static_cast<size_t>(pixel) < palette.size();
  });
  if (palette.size() > 256 || !has_all) fail(Errc::value, "a pixel has no colour in the palette");
  std::string colours;
  for (const Colour& colour : palette)
    colours +=
        {static_cast<char>(colour.red), static_cast<char>(colour.green), static_cast<char>(colour.blue)};
  std::string rows;
  rows.reserve(static_cast<size_t>(height * (width + 1)));
  for (int64_t row = 0; row < height; ++row) {
    rows += '\0';  // no filter
    rows.append(reinterpret_cast<const char*>(pixels.data()) + row * width, static_cast<size_t>(width));
  }
  // 8 bits for each pixel, an index of the palette (3); deflate, filters by row, not interlaced
  const std::string header = number(static_cast<uint32_t>(width)) + number(static_cast<uint32_t>(height)) +
                             std::string("\x08\x03\x00\x00\x00", 5);
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("PLTE", colours) +
         chunk("IDAT", deflated(rows)) + chunk("IEND", "");
}

}  // namespace cbk
