#include "host/formats/hdf5/image.hpp"

namespace cbk::hdf5 {

Image::Image(std::shared_ptr<const MappedFile> file, MemoryPtr memory, bool may_be_cut)
    : file_(std::move(file)),
      superblock_(read_superblock(file_->bytes(), may_be_cut)),
      memory_(or_own(std::move(memory), file_->size())),
      budget_((uint64_t{64} << 20) + 16 * file_->size()) {}

void Image::charge(uint64_t work) const {
  if (spent_.fetch_add(work, std::memory_order_relaxed) + work > budget_) {
    damaged("its structures refer to each other far too often");
  }
}

void Image::refuse_superblock(uint64_t begin, uint64_t end) const {
  if (begin < superblock_.start + superblock_.size && superblock_.start < end) {
    damaged("its data is at bytes {} to {}, in the superblock", begin, end);
  }
}

ByteView Image::bytes(uint64_t address, uint64_t length, const char* what) const {
  const uint64_t size = file_->size() - base();
  if (address > size || length > size - address) {
    damaged("{} should be at bytes {} to {}, but the file has {}", what, address, address + length, size);
  }
  charge(length + 16);
  return file_->bytes().subspan(base() + address, length);
}

ByteView Image::bytes_up_to(uint64_t address, uint64_t length, const char* what) const {
  const uint64_t size = file_->size() - base();
  return bytes(address, address < size ? std::min(length, size - address) : length, what);
}

ByteView Image::unpacked(uint64_t address, uint64_t size, const std::function<Bytes()>& make) const {
  const std::lock_guard lock(unpacking_);
  if (const auto known = unpacked_.find(address); known != unpacked_.end()) return known->second;
  memory_->charge(size);
  return unpacked_.emplace(address, make()).first->second;
}

Cursor Image::checked(uint64_t address, uint64_t length, std::string_view expected, const char* what) const {
  if (length < expected.size() + 4) damaged("{} is too short", what);
  const ByteView all = bytes(address, length, what);
  if (as_text(all.first(expected.size())) != expected) damaged("{} does not begin with '{}'", what, expected);
  const ByteView body = all.first(length - 4);
  if (load_le<uint32_t>(all.data() + body.size()) != lookup3(body))
    damaged("the checksum of {} is wrong", what);
  Cursor in(body, sizes(), what);
  in.skip(expected.size());
  return in;
}

}  // namespace cbk::hdf5
