// A tensor as comma-separated values.
#pragma once

#include <filesystem>

#include "host/tensor/tensor.hpp"

namespace cbk {

/// A line for each run along the last dim (of a tensor with one dim: for each element). Numbers have the
/// fewest digits that give the same number again; bools are 0 and 1. The file appears once it is complete.
/// Errors: `dtype` of complex elements, `exists`, `io`, `no_space`.
void write_csv(const Tensor& tensor, const std::filesystem::path& target, bool overwrite);

}  // namespace cbk
