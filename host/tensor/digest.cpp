#include "host/tensor/digest.hpp"

#include <algorithm>
#include <cstring>

#include "host/base/interrupt.hpp"
#include "host/base/sha256.hpp"

namespace cbk {

namespace {

/// The elements in C order, block by block.
template <typename Visit>
void each_block(const Tensor& tensor, Visit visit) {
  constexpr int64_t block_bytes = 1 << 20;
  const auto itemsize = static_cast<int64_t>(size_of(tensor.dtype()));
  const int64_t step = block_bytes / itemsize;
  Bytes buffer(static_cast<size_t>(std::min(step, tensor.numel()) * itemsize));
  for (int64_t begin = 0; begin < tensor.numel(); begin += step) {
    check_interrupt();
    const int64_t count = std::min(step, tensor.numel() - begin);
    const std::span<std::byte> block(buffer.data(), static_cast<size_t>(count * itemsize));
    tensor.read(begin, block);
    visit(block);
  }
}

/// The finalizer of splitmix64.
uint64_t mixed(uint64_t bits) {
  bits += 0x9e3779b97f4a7c15ULL;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  return bits ^ (bits >> 31);
}

template <size_t size>
uint64_t sum_of_hashes(ByteView block) {
  uint64_t out = 0;
  for (size_t at = 0; at < block.size(); at += size) {
    uint64_t low = 0;
    uint64_t high = 0;
    std::memcpy(&low, block.data() + at, std::min<size_t>(size, 8));
    if constexpr (size == 16) std::memcpy(&high, block.data() + at + 8, 8);
    out += size == 16 ? mixed(mixed(low) ^ high) : mixed(low);
  }
  return out;
}

uint64_t sum_of_hashes(ByteView block, size_t itemsize) {
  switch (itemsize) {
    case 1:
      return sum_of_hashes<1>(block);
    case 2:
      return sum_of_hashes<2>(block);
    case 4:
      return sum_of_hashes<4>(block);
    case 8:
      return sum_of_hashes<8>(block);
    default:
      return sum_of_hashes<16>(block);
  }
}

}  // namespace

std::string sha256(const Tensor& tensor) {
  Sha256 digest;
  each_block(tensor, [&](ByteView block) { digest.add(block); });
  return to_hex(digest.digest());
}

uint64_t content(const Tensor& tensor) {
  uint64_t out = 0;
  each_block(tensor, [&](ByteView block) { out += sum_of_hashes(block, size_of(tensor.dtype())); });
  return out;
}

}  // namespace cbk
