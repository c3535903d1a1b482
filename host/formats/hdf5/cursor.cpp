#include "host/formats/hdf5/cursor.hpp"

namespace cbk::hdf5 {

uint64_t Cursor::number(unsigned size) {
  ByteView field = take(size);
  uint64_t value = 0;
  std::memcpy(&value, field.data(), size);
  return value;
}

uint64_t Cursor::address() {
  const uint64_t value = number(sizes_.address);
  const uint64_t ones = sizes_.address == 8 ? UINT64_MAX : (uint64_t{1} << (8 * sizes_.address)) - 1;
  return value == ones ? undefined_address : value;
}

ByteView Cursor::take(uint64_t count) {
  if (count > remaining()) damaged("{} ends too early", what_);
  ByteView field = bytes_.subspan(position_, count);
  position_ += count;
  return field;
}

std::string_view Cursor::text() {
  const std::string_view rest = as_text(bytes_.subspan(position_));
  const size_t end = rest.find('\0');
  if (end == std::string_view::npos) damaged("a name in {} has no end", what_);
  position_ += end + 1;
  return rest.substr(0, end);
}

void Cursor::expect(std::string_view expected) {
  if (as_text(take(expected.size())) != expected) damaged("{} does not begin with '{}'", what_, expected);
}

uint32_t lookup3(ByteView bytes) {
  // Bob Jenkins' hash of 2006 with the initial value 0, over 12-byte blocks.
  const auto rotate = [](uint32_t value, int count) { return std::rotl(value, count); };
  uint32_t a = 0xdeadbeef + static_cast<uint32_t>(bytes.size());
  uint32_t b = a;
  uint32_t c = a;
  while (bytes.size() > 12) {
    a += load_le<uint32_t>(bytes.data());
    b += load_le<uint32_t>(bytes.data() + 4);
    c += load_le<uint32_t>(bytes.data() + 8);
    a = (a - c) ^ rotate(c, 4), c += b;
    b = (b - a) ^ rotate(a, 6), a += c;
    c = (c - b) ^ rotate(b, 8), b += a;
    a = (a - c) ^ rotate(c, 16), c += b;
    b = (b - a) ^ rotate(a, 19), a += c;
    c = (c - b) ^ rotate(b, 4), b += a;
    bytes = bytes.subspan(12);
  }
  if (bytes.empty()) return c;
  std::byte last[12] = {};
  std::memcpy(last, bytes.data(), bytes.size());
  a += load_le<uint32_t>(last);
  b += load_le<uint32_t>(last + 4);
  c += load_le<uint32_t>(last + 8);
  c = (c ^ b) - rotate(b, 14);
  a = (a ^ c) - rotate(c, 11);
  b = (b ^ a) - rotate(a, 25);
  c = (c ^ b) - rotate(b, 16);
  a = (a ^ c) - rotate(c, 4);
  b = (b ^ a) - rotate(a, 14);
  c = (c ^ b) - rotate(b, 24);
  return c;
}

}  // namespace cbk::hdf5
