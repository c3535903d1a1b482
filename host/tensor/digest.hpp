// A tensor's elements as one short text.
#pragma once

#include <string>

#include "host/tensor/tensor.hpp"

namespace cbk {

/// SHA-256 of the little-endian elements in C order, in lower-case hex. Ctrl-C is honoured between blocks.
std::string sha256(const Tensor& tensor);

std::string to_hex(ByteView bytes);

}  // namespace cbk
