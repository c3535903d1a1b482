// Whole numbers as pickles store them (two's complement, little-endian, any length) and as decimal digits.
#pragma once

#include <string>
#include <string_view>

#include "host/value/value.hpp"

namespace cbk::pickle {

/// Longest number that is converted, in bytes (about 19,000 digits): the conversion is quadratic.
inline constexpr size_t long_integer_limit = 8192;

/// Errors: `format` for a number beyond the limit.
Value decode_long(std::string_view bytes);

/// The shortest two's complement of an Integer.
std::string encode_long(const Integer& integer);

}  // namespace cbk::pickle
