// A tensor's elements as one short text.
#pragma once

#include <cstdint>
#include <string>

#include "host/base/sha256.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk {

/// SHA-256 of the little-endian elements in C order, in lower-case hex. Ctrl-C is honoured between blocks.
std::string sha256(const Tensor& tensor);

/// A number that is equal for tensors with the same elements in any order: the sum of a hash of each element,
/// modulo 2^64. The number of a concatenation is the sum of its parts' numbers. For comparisons, not against
/// forgery.
uint64_t content(const Tensor& tensor);

}  // namespace cbk
