// Numbers out of tensors, exactly: whole ones of any integer dtype beside real ones.
#pragma once

#include <cstddef>
#include <variant>

#include "host/tensor/dtype.hpp"

namespace cbk {

/// Holds any sum of 2^58 64-bit integers, and the product of one with a factor below 2^53.
__extension__ using Wide = __int128;

/// Of an integer or bool tensor a whole number, of a floating one a double.
using Number = std::variant<Wide, double>;

/// Integers and bools.
bool is_whole(DType dtype);

/// The element at `at`, of a dtype that is_whole.
Wide whole_at(DType dtype, const std::byte* at);

}  // namespace cbk
