// The element types of safetensors, in the order in which the reference writer ranks them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "host/tensor/dtype.hpp"

namespace cbk::safetensors {

struct DTypeInfo {
  std::string_view name;
  uint32_t bits = 0;
  std::optional<DType> dtype;  // none: elements smaller than a byte, which can be listed but not read
  size_t rank = 0;
};

/// nullptr for an unknown name.
const DTypeInfo* find(std::string_view name);

/// nullptr for a dtype that the format cannot hold (complex128).
const DTypeInfo* find(DType dtype);

}  // namespace cbk::safetensors
