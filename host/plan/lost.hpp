// Tensors that lost values on their way into an output, and the words for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/tensor/dtype.hpp"
#include "host/tensor/kernels/losses.hpp"

namespace cbk {

struct LostValues {
  std::string key;
  DType dtype = DType::float32;  // that could not hold them
  int64_t numel = 0;
  Losses losses;
};

/// A `value` error that names the tensors with values that overflowed or changed, if there are any.
void refuse_losses(const std::vector<LostValues>& lost);

/// What a user should know of them, as warnings.
std::vector<std::string> warnings_of(const std::vector<LostValues>& lost);

}  // namespace cbk
