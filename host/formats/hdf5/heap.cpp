#include "host/formats/hdf5/heap.hpp"

#include "host/formats/hdf5/btree2.hpp"

namespace cbk::hdf5 {

LocalHeap::LocalHeap(const Image& image, uint64_t address) {
  const FieldSizes sizes = image.sizes();
  const uint64_t head = 8 + 2 * sizes.length + sizes.address;
  Cursor in = image.cursor(address, head, "a local heap");
  in.expect("HEAP");
  in.skip(4);
  const uint64_t size = in.length();
  in.length();  // free list
  const uint64_t data = in.address();
  data_ = as_text(image.bytes(data, size, "the names of a group"));
  image.claim_structure(address, head);
  image.claim_structure(data, size);
}

std::string_view LocalHeap::text(uint64_t offset) const {
  const size_t end = offset < data_.size() ? data_.find('\0', offset) : std::string_view::npos;
  if (end == std::string_view::npos) damaged("a name outside its heap");
  return data_.substr(offset, end - offset);
}

constexpr uint64_t object_bytes = 48;  // in memory, about

const GlobalHeap::Collection& GlobalHeap::collection(uint64_t address) {
  if (auto known = collections_.find(address); known != collections_.end()) return known->second;
  const uint64_t head = 8 + image_.sizes().length;
  Cursor start = image_.cursor(address, head, "a global heap");
  start.expect("GCOL");
  start.skip(4);
  const uint64_t size = start.length();
  if (size < head) damaged("a global heap of {} bytes", size);
  Cursor in = image_.cursor(address, size, "a global heap");
  image_.claim_structure(address, size);
  in.skip(head);
  Collection found;
  const uint64_t object_head = 8 + image_.sizes().length;
  while (in.remaining() >= object_head) {
    const uint16_t index = in.u16();
    in.skip(6);
    const uint64_t length = in.length();
    if (index == 0) break;  // free space up to the end
    image_.memory().charge(object_bytes);
    found.emplace(index, in.take(length));
    in.skip(std::min(align_up(length, 8) - length, in.remaining()));
  }
  return collections_.emplace(address, std::move(found)).first->second;
}

ByteView GlobalHeap::find(uint64_t address, uint32_t index) {
  const Collection& objects = collection(address);
  const auto found = objects.find(index);
  if (found == objects.end()) damaged("global heap object {} at byte {} is missing", index, address);
  image_.charge(found->second.size());
  return found->second;
}

namespace {

unsigned bits_of(uint64_t value) {
  return static_cast<unsigned>(std::bit_width(value));
}

bool is_power_of_two(uint64_t value) {
  return std::has_single_bit(value);
}

}  // namespace

FractalHeap::FractalHeap(const Image& image, uint64_t address) : image_(image) {
  const FieldSizes sizes = image.sizes();
  Cursor head = image.cursor(address, 4 + 1 + 2 + 2, "a fractal heap");
  head.skip(4 + 1 + 2);
  const uint16_t filter_length = head.u16();
  const uint64_t filters = filter_length == 0 ? 0 : sizes.length + 4ULL + filter_length;
  const uint64_t fixed =
      4 + 1 + 2 + 2 + 1 + 4 + 12ULL * sizes.length + 3ULL * sizes.address + 2 + 2 + 2 + 2 + 4;
  Cursor in = image.checked(address, fixed + filters, "FRHP", "a fractal heap");
  in.skip(1);
  id_length_ = in.u16();
  in.skip(2 + 1);
  max_managed_ = in.u32();
  in.length();
  huge_tree_ = in.address();
  in.length();
  in.address();
  for (int i = 0; i < 8; ++i) in.length();
  width_ = in.u16();
  start_size_ = in.length();
  max_direct_ = in.length();
  const uint16_t max_bits = in.u16();
  in.u16();
  root_ = in.address();
  root_rows_ = in.u16();
  if (width_ == 0 || width_ > 1024 || !is_power_of_two(start_size_) || !is_power_of_two(max_direct_) ||
      max_direct_ < start_size_ || max_direct_ > (uint64_t{1} << 32) || max_bits == 0 || max_bits > 64 ||
      root_rows_ > 64) {
    damaged("a fractal heap with impossible sizes");
  }
  offset_bytes_ = (max_bits + 7U) / 8;
  const unsigned direct_bytes = (bits_of(max_direct_) - 1 + 7) / 8;
  const unsigned managed_bytes = max_managed_ == 0 ? 1 : (bits_of(max_managed_) - 1) / 8 + 1;
  length_bytes_ = std::min(direct_bytes, managed_bytes);
  if (filter_length > 0) read_filter_info(in, filter_length);
}

void FractalHeap::read_filter_info(Cursor& in, uint16_t length) {
  root_stored_ = in.length();
  root_mask_ = in.u32();
  Cursor list(in.take(length), image_.sizes(), "the filters of a heap");
  filters_ = read_filters(list);
  check_filters(filters_);
}

ByteView FractalHeap::inside(const Block& block, uint64_t offset, uint64_t length) const {
  if (offset > block.size || length > block.size - offset) damaged("a heap object outside its block");
  if (filters_.empty()) {
    Cursor in = image_.cursor(block.address, 4, "a heap's direct block");
    in.expect("FHDB");
    image_.claim_structure(block.address, block.size);
    return image_.bytes(block.address + offset, length, "a heap object");
  }
  image_.charge(length);
  const ByteView unpacked = image_.unpacked(block.address, block.size, [&] {
    const ByteView stored = image_.bytes(block.address, block.stored, "a heap's direct block");
    image_.claim_structure(block.address, block.stored);
    return decode_chunk(filters_, block.mask, stored, block.size);
  });
  if (unpacked.size() != block.size) damaged("a heap's direct block of two sizes");
  return unpacked.subspan(offset, length);
}

uint64_t FractalHeap::row_size(uint64_t row) const {
  return row == 0 ? start_size_ : start_size_ << (row - 1);
}

uint64_t FractalHeap::row_start(uint64_t row) const {
  return row == 0 ? 0 : width_ * row_size(row);
}

ByteView FractalHeap::find(ByteView id) const {
  Cursor in(id, image_.sizes(), "a heap id");
  const uint8_t flags = in.u8();
  switch ((flags >> 4) & 3) {
    case 0: {
      const uint64_t offset = in.number(offset_bytes_);
      return managed(offset, in.number(length_bytes_));
    }
    case 1:
      return huge(in);
    case 2: {
      const bool extended = id_length_ > 17;
      const uint64_t length = (extended ? ((flags & 0xFU) << 8) + in.u8() : (flags & 0xFU)) + 1;
      return in.take(length);
    }
    default:
      damaged("a heap id of an unknown kind");
  }
}

ByteView FractalHeap::managed(uint64_t offset, uint64_t length) const {
  const FieldSizes sizes = image_.sizes();
  const uint64_t max_direct_rows = bits_of(max_direct_) - bits_of(start_size_) + 2;
  Block block{root_, root_stored_, root_mask_, start_size_};
  const uint64_t filter_fields = filters_.empty() ? 0 : sizes.length + 4ULL;
  uint64_t rows = root_rows_;
  uint64_t left = offset;  // relative to the block
  for (int depth = 0; rows != 0; ++depth) {
    if (depth > 32) damaged("a fractal heap nested too deeply");
    uint64_t row = 0;
    while (row < rows && (row >= 30 || left >= row_start(row + 1))) ++row;
    if (row >= rows) damaged("a heap object outside its heap");
    const uint64_t column = (left - row_start(row)) / row_size(row);
    if (column >= width_) damaged("a heap object outside its heap");
    const uint64_t entry = row * width_ + column;
    const bool is_direct = row < max_direct_rows;
    // Entries of direct blocks come first, with fields of filters, if there are any.
    const uint64_t filtered = std::min(entry, max_direct_rows * width_) * filter_fields;
    const uint64_t place = 1 + sizes.address + offset_bytes_ + entry * sizes.address + filtered;
    const uint64_t fields = sizes.address + (is_direct ? filter_fields : 0);
    Cursor in = image_.cursor(block.address, 4 + place + fields, "a heap's indirect block");
    in.expect("FHIB");
    const uint64_t all = std::min(rows, max_direct_rows) * width_ * filter_fields;
    image_.claim_structure(block.address,
                           4 + 1 + sizes.address + offset_bytes_ + rows * width_ * sizes.address + all + 4);
    in.skip(place);
    block = {in.address(), 0, 0, row_size(row)};
    if (block.address == undefined_address) damaged("a heap object in a block that is missing");
    if (is_direct && filter_fields > 0) {
      block.stored = in.length();
      block.mask = in.u32();
    }
    left -= row_start(row) + column * row_size(row);
    rows = is_direct ? 0 : bits_of(block.size) - bits_of(start_size_ * width_) + 1;
  }
  return inside(block, left, length);
}

ByteView FractalHeap::huge(Cursor id) const {
  const FieldSizes sizes = image_.sizes();
  const bool packed = !filters_.empty();
  // Its place; in compressed heaps also the filters that were left out and its uncompressed size.
  const auto object = [&](Cursor& in) {
    Block place{in.address(), in.length(), 0, 0};
    if (packed) {
      place.mask = in.u32();
      place.size = in.length();
    }
    return place;
  };
  Block place;
  if (id_length_ - 1U >= sizes.address + sizes.length + (packed ? 4 + sizes.length : 0)) {
    place = object(id);
  } else {
    const uint64_t key =
        id.number(static_cast<unsigned>(std::min<uint64_t>({8, id.remaining(), sizes.length})));
    bool is_found = false;
    const RecordType type = packed ? RecordType::packed_huge_object : RecordType::huge_object;
    for_each_record(image_, huge_tree_, type, [&](Cursor record) {
      const Block candidate = object(record);
      if (is_found || record.length() != key) return;
      place = candidate;
      is_found = true;
    });
    if (!is_found) damaged("huge heap object {} is missing", key);
  }
  const ByteView stored = image_.bytes(place.address, place.stored, "a huge heap object");
  image_.claim_structure(place.address, place.stored);
  if (!packed) return stored;
  return image_.unpacked(place.address, place.size,
                         [&] { return decode_chunk(filters_, place.mask, stored, place.size); });
}

}  // namespace cbk::hdf5
