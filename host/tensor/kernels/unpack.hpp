// Numbers from small codes in the bits of words: loops for the vector unit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cbk {

/// Where the codes of a 32-bit word are, and the number that each code means.
struct UnpackTables {
  uint32_t bits = 4;                // of a code: 1, 2 or 4
  std::array<uint32_t, 32> shifts;  // of the 32 / bits codes of a word, in the order of the result
  std::array<float, 16> values;     // of the 2^bits codes
};

/// One number of each of `count` elements of `itemsize` bytes (1, 2 or 4): of the code at bit `shift`.
void unpack_codes(const std::byte* elements, uint32_t itemsize, size_t count, uint32_t shift,
                  const UnpackTables& tables, float* out);

/// The 32 / bits numbers of each of `count` words, which may start at any byte.
void unpack_words(const std::byte* words, size_t count, const UnpackTables& tables, float* out);

}  // namespace cbk
