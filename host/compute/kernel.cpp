#include "host/compute/kernel.hpp"

namespace cbk::compute {

bool Operand::is_contiguous() const {
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != stride) return false;
    stride *= shape[i];
  }
  return true;
}

bool Operand::is_same_view(const Operand& other) const {
  if (buffer != other.buffer || dtype != other.dtype || offset != other.offset || shape != other.shape)
    return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != 1 && strides[i] != other.strides[i]) return false;
  }
  return true;
}

}  // namespace cbk::compute
