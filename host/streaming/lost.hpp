// Tensors that lost values on their way into an output, and messages about them.
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

/// Fails (`value`) with the names of tensors that have overflowed or changed values, if there are any.
void refuse_losses(const std::vector<LostValues>& lost);

/// Warnings about them for the user.
std::vector<std::string> warnings_of(const std::vector<LostValues>& lost);

}  // namespace cbk
