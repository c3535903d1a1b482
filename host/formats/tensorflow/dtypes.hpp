// The element types of TensorFlow, and their dtypes in cbk.
#pragma once

#include <string_view>

#include "host/tensor/dtype.hpp"

namespace cbk::tensorflow {

struct DTypeInfo {
  enum class Kind {
    plain,       // a DType of ours
    quantized,   // whole numbers with a meaning of their own; `dtype` is how they are stored
    string,      // each element has a length of its own
    unreadable,  // resources, variants, elements smaller than a byte
  };
  int number = 0;
  std::string_view name;
  Kind kind = Kind::plain;
  DType dtype = DType::uint8;  // plain and quantized
};

/// Dtypes of future TensorFlow releases.
inline constexpr DTypeInfo unknown_dtype = {0, "unknown", DTypeInfo::Kind::unreadable};

/// nullptr for a number or name that is unknown in TensorFlow.
const DTypeInfo* find(int number);
const DTypeInfo* find(std::string_view name);
/// nullptr for a dtype that TensorFlow lacks.
const DTypeInfo* find(DType dtype);

}  // namespace cbk::tensorflow
