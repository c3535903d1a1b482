#include "host/formats/hdf5/image.hpp"

#include <algorithm>

namespace cbk::hdf5 {
namespace {

constexpr uint64_t claim_bytes = 64;  // in memory, about

/// Whether bytes [begin, end) share any with ranges, which are ends by beginnings.
bool is_in(const std::map<uint64_t, uint64_t>& ranges, uint64_t begin, uint64_t end) {
  const auto next = ranges.lower_bound(begin);
  return (next != ranges.end() && next->first < end) ||
         (next != ranges.begin() && std::prev(next)->second > begin);
}

}  // namespace

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

void Image::claim(std::optional<uint64_t> owner, std::vector<Range> ranges) const {
  std::ranges::sort(ranges, {}, &Range::begin);
  const std::scoped_lock lock(claiming_);
  if (owner && !owners_.insert(*owner).second) return;
  uint64_t begin = 0;
  const auto take = [&](uint64_t end) {
    auto next = claimed_.lower_bound(begin);
    const auto before = next == claimed_.begin() ? claimed_.end() : std::prev(next);
    if (is_in(claimed_, begin, end) || is_in(structures_, begin, end))
      damaged("its data at bytes {} to {} is in other data, or in a structure of the file", begin, end);
    if (before != claimed_.end() && before->second == begin) {
      before->second = end;
    } else {
      memory_->charge(claim_bytes);
      claimed_.emplace_hint(next, begin, end);
    }
  };
  for (size_t i = 0; i < ranges.size(); ++i) {
    const Range& range = ranges[i];
    const bool is_last = i + 1 == ranges.size();
    if (i == 0 || ranges[i - 1].end != range.begin) begin = range.begin;
    if (!is_last && ranges[i + 1].begin < range.end)
      damaged("its data overlaps at byte {}", ranges[i + 1].begin);
    if (is_last || ranges[i + 1].begin != range.end) take(range.end);
  }
}

void Image::claim_structure(uint64_t address, uint64_t length) const {
  uint64_t begin = base() + address;
  uint64_t end = std::min(begin + length, file_->size());
  if (begin >= end) return;
  const std::scoped_lock lock(claiming_);
  auto next = structures_.upper_bound(begin);
  if (next != structures_.begin() && std::prev(next)->second >= end) return;
  if (is_in(claimed_, begin, end))
    damaged("a structure of the file, at bytes {} to {}, is in the data of a dataset", begin, end);
  if (next != structures_.begin() && std::prev(next)->second >= begin) begin = (--next)->first;
  while (next != structures_.end() && next->first <= end) {
    end = std::max(end, next->second);
    next = structures_.erase(next);
  }
  memory_->charge(claim_bytes);
  structures_.emplace_hint(next, begin, end);
}

void Image::set_ranks(GroupRanks ranks, uint16_t chunk_rank) {
  superblock_.ranks = ranks;
  superblock_.chunk_rank = chunk_rank;
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
  claim_structure(address, length);
  Cursor in(body, sizes(), what);
  in.skip(expected.size());
  return in;
}

}  // namespace cbk::hdf5
