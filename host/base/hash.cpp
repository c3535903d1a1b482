#include "host/base/hash.hpp"

#include <array>
#include <random>

#include "host/base/bytes.hpp"

namespace cbk {
namespace {

using Secret = std::array<uint64_t, 2>;

const Secret& secret() {
  static const Secret value = [] {
    std::random_device source;
    const auto word = [&] { return (static_cast<uint64_t>(source()) << 32) | source(); };
    return Secret{word(), word()};
  }();
  return value;
}

struct State {
  uint64_t a;
  uint64_t b;
  uint64_t c;
  uint64_t d;

  void round() {
    a += b;
    c += d;
    b = std::rotl(b, 13) ^ a;
    d = std::rotl(d, 16) ^ c;
    a = std::rotl(a, 32);
    c += b;
    a += d;
    b = std::rotl(b, 17) ^ c;
    d = std::rotl(d, 21) ^ a;
    c = std::rotl(c, 32);
  }

  void absorb(uint64_t word) {
    d ^= word;
    round();
    a ^= word;
  }
};

}  // namespace

size_t KeyedHash::operator()(std::string_view text) const {
  const auto& [low, high] = secret();
  State state{low ^ 0x736f6d6570736575, high ^ 0x646f72616e646f6d, low ^ 0x6c7967656e657261,
              high ^ 0x7465646279746573};
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) state.absorb(load_le<uint64_t>(text.data() + at));
  uint64_t last = static_cast<uint64_t>(text.size()) << 56;
  for (size_t i = 0; at + i < text.size(); ++i) {
    last |= static_cast<uint64_t>(static_cast<uint8_t>(text[at + i])) << (8 * i);
  }
  state.absorb(last);
  state.c ^= 0xff;
  for (int i = 0; i < 3; ++i) state.round();
  return state.a ^ state.b ^ state.c ^ state.d;
}

}  // namespace cbk
