// Hashes of bytes, for finding equal tensors: fast, but not safe against deliberate collisions.
#pragma once

#include <cstdint>

#include "host/base/bytes.hpp"

namespace cbk {

/// Joins a hash with another number.
constexpr uint64_t mixed(uint64_t word) {
  word = (word ^ (word >> 32)) * 0x9e3779b97f4a7c15;
  word = (word ^ (word >> 29)) * 0xd6e8feb86659fd93;
  return word ^ (word >> 32);
}

/// A sum over the pairs of 8-byte words of a run of bytes, each with its place: it is the same for any
/// division of the run between pairs. `offset`: of the bytes in the run, a multiple of 16.
uint64_t hash_of(uint64_t offset, ByteView bytes);

}  // namespace cbk
