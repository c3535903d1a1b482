// Random numbers from a counter: each is a function of a seed and a position alone, so that blocks can be
// made in any order, on any thread.
#pragma once

#include <cstdint>

namespace cbk {

/// SplitMix64's finaliser (Steele, Lea and Flood, 2014).
inline uint64_t scrambled(uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

/// A number from [0, 1) of 53 bits. `stream` is a scrambled seed.
inline double uniform_at(uint64_t stream, int64_t position) {
  return static_cast<double>(scrambled(stream + static_cast<uint64_t>(position)) >> 11) * 0x1p-53;
}

}  // namespace cbk
