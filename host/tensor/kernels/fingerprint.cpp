#include "host/tensor/kernels/fingerprint.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace cbk {

uint64_t hash_of(uint64_t offset, ByteView bytes) {
  __extension__ using Product = unsigned __int128;
  constexpr uint64_t golden = 0x9e3779b97f4a7c15;
  constexpr size_t pair = 16;
  const auto hash = [](const std::byte* words, uint64_t key) {
    const uint64_t first = load_le<uint64_t>(words) ^ key;
    const uint64_t second = load_le<uint64_t>(words + 8) ^ ~std::rotl(key, 32);
    const Product product = static_cast<Product>(first) * second;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  constexpr size_t lanes = 4;  // so that additions need not wait for each other
  std::array<uint64_t, lanes> sums{};
  uint64_t key = (offset / pair + 1) * golden;
  size_t at = 0;
  for (; at + pair * lanes <= bytes.size(); at += pair * lanes, key += lanes * golden) {
    for (size_t lane = 0; lane < lanes; ++lane)
      sums[lane] += hash(bytes.data() + at + pair * lane, key + lane * golden);
  }
  uint64_t out = sums[0] + sums[1] + sums[2] + sums[3];
  for (; at < bytes.size(); at += pair, key += golden) {
    std::array<std::byte, pair> words{};
    std::memcpy(words.data(), bytes.data() + at, std::min(pair, bytes.size() - at));
    out += hash(words.data(), key);
  }
  return out;
}

}  // namespace cbk
