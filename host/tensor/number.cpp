#include "host/tensor/number.hpp"

#include "host/base/bytes.hpp"

namespace cbk {

bool is_whole(DType dtype) {
  return is_integer(dtype) || dtype == DType::boolean;
}

Wide whole_at(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::boolean:
      return load_le<uint8_t>(at) != 0 ? 1 : 0;
    case DType::uint8:
      return load_le<uint8_t>(at);
    case DType::int8:
      return load_le<int8_t>(at);
    case DType::uint16:
      return load_le<uint16_t>(at);
    case DType::int16:
      return load_le<int16_t>(at);
    case DType::uint32:
      return load_le<uint32_t>(at);
    case DType::int32:
      return load_le<int32_t>(at);
    case DType::uint64:
      return load_le<uint64_t>(at);
    default:
      return load_le<int64_t>(at);
  }
}

}  // namespace cbk
