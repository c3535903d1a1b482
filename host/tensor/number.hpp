// Exact numbers from tensors: integers of any integer dtype, and real numbers.
#pragma once

#include <cstddef>
#include <variant>

#include "host/tensor/dtype.hpp"

namespace cbk {

/// Holds any sum of 2^58 64-bit integers, and the product of one with a factor below 2^53.
__extension__ using Wide = __int128;

/// An integer for an integer or bool tensor, a double for a floating-point one.
using Number = std::variant<Wide, double>;

/// Integers and bools.
bool is_whole(DType dtype);

/// The element at `at`, of a dtype that is_whole.
Wide whole_at(DType dtype, const std::byte* at);

}  // namespace cbk
