#include "host/formats/h5/container/image.hpp"

namespace cbk::h5 {

constexpr std::string_view signature{"\x89HDF\r\n\x1a\n", 8};

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

uint64_t find_signature(ByteView bytes) {
  for (uint64_t at = 0; at + signature.size() <= bytes.size(); at = at == 0 ? 512 : at * 2) {
    if (as_text(bytes.subspan(at, signature.size())) == signature) return at;
  }
  return undefined_address;
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

Image::Image(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {
  budget_ = (uint64_t{64} << 20) + 16 * file_->size();
  const uint64_t start = find_signature(file_->bytes());
  if (start == undefined_address) fail(Errc::format, "not an HDF5 file");
  Cursor in(file_->bytes().subspan(start), sizes_, "the superblock");
  in.expect(signature);
  const uint8_t version = in.u8();
  if (version > 3) fail(Errc::unsupported, "HDF5 superblock version {} is not known", version);
  if (version < 2) {
    in.skip(4);  // versions of parts that never had another one
    sizes_.address = in.u8();
    sizes_.length = in.u8();
    in.skip(1 + 2 + 2 + 4);  // ranks of the group trees, flags
    if (version == 1) in.skip(4);
  } else {
    sizes_.address = in.u8();
    sizes_.length = in.u8();
    in.skip(1);
  }
  for (unsigned size : {sizes_.address, sizes_.length}) {
    if (size != 2 && size != 4 && size != 8) damaged("addresses of {} bytes", size);
  }
  const uint64_t at = in.position();
  Cursor rest(file_->bytes().subspan(start + at), sizes_, "the superblock");
  base_ = rest.address();
  if (base_ == undefined_address || base_ > file_->size()) damaged("its base address lies outside");
  rest.address();  // free space or extension
  const uint64_t end = rest.address();
  if (end != undefined_address && end > file_->size()) {
    damaged("it should have {} bytes, but there are {}; is it cut short?", end, file_->size());
  }
  rest.address();  // driver information; in the newer versions the root group
  if (version < 2) {
    rest.number(sizes_.address);
    root_ = rest.address();
  } else {
    Cursor again(file_->bytes().subspan(start + at), sizes_, "the superblock");
    again.skip(3 * sizes_.address);
    root_ = again.address();
    const ByteView covered = file_->bytes().subspan(start, at + again.position());
    if (again.u32() != lookup3(covered)) damaged("the checksum of the superblock is wrong");
  }
}

void Image::charge(uint64_t work) const {
  if (spent_.fetch_add(work, std::memory_order_relaxed) + work > budget_) {
    damaged("its structures refer to each other far too often");
  }
}

ByteView Image::bytes(uint64_t address, uint64_t length, const char* what) const {
  const uint64_t size = file_->size() - base_;
  if (address > size || length > size - address) {
    damaged("{} should lie at bytes {} to {}, but the file has {}", what, address, address + length, size);
  }
  charge(length + 16);
  return file_->bytes().subspan(base_ + address, length);
}

ByteView Image::bytes_up_to(uint64_t address, uint64_t length, const char* what) const {
  const uint64_t size = file_->size() - base_;
  return bytes(address, address < size ? std::min(length, size - address) : length, what);
}

Cursor Image::checked(uint64_t address, uint64_t length, std::string_view expected, const char* what) const {
  if (length < expected.size() + 4) damaged("{} is too short", what);
  const ByteView all = bytes(address, length, what);
  if (as_text(all.first(expected.size())) != expected) damaged("{} does not begin with '{}'", what, expected);
  const ByteView body = all.first(length - 4);
  if (load_le<uint32_t>(all.data() + body.size()) != lookup3(body))
    damaged("the checksum of {} is wrong", what);
  Cursor in(body, sizes_, what);
  in.skip(expected.size());
  return in;
}

}  // namespace cbk::h5
