#include "host/tensor/found_moments.hpp"

#include <cmath>
#include <limits>

namespace cbk {

double least_normal(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return 0x1p-14;
    case DType::float8_e4m3fn:
      return 0x1p-6;
    case DType::float8_e5m2:
      return 0x1p-14;
    case DType::float8_e4m3fnuz:
      return 0x1p-7;
    case DType::float8_e5m2fnuz:
      return 0x1p-15;
    case DType::float8_e8m0fnu:
      return 0;  // it has only normal numbers
    case DType::float64:
      return std::numeric_limits<double>::min();
    default:
      return std::numeric_limits<float>::min();
  }
}

Statistics as_statistics(const Moments& moments) {
  Statistics out;
  out.nan = moments.nan;
  out.inf = moments.inf;
  out.zeros = moments.zeros;
  out.subnormal = moments.subnormal;
  if (moments.count == 0) return out;
  const auto count = static_cast<long double>(moments.count);
  out.min = moments.min;
  out.max = moments.max;
  out.mean = static_cast<double>(moments.mean);
  out.std = static_cast<double>(std::sqrt(moments.squares / count));
  out.norm = static_cast<double>(std::sqrt(moments.squares + count * moments.mean * moments.mean));
  return out;
}

}  // namespace cbk
