#include "host/compute/promote.hpp"

#include <algorithm>
#include <cmath>

#include "host/base/error.hpp"

namespace cbk::compute {
namespace {

int kind_of(DType dtype) {
  if (dtype == DType::boolean) return 0;
  return is_floating(dtype) ? 2 : 1;
}

DType wider(DType a, DType b) {
  if (a == b) return a;
  if (kind_of(a) != kind_of(b)) return kind_of(a) > kind_of(b) ? a : b;
  if (kind_of(a) == 2 && size_of(a) == size_of(b)) return DType::float32;
  return size_of(a) > size_of(b) ? a : b;
}

}  // namespace

DType result_dtype(std::initializer_list<const Input*> operands) {
  std::optional<DType> with_dims, without_dims;
  bool has_number = false, has_fraction = false;
  for (const Input* operand : operands) {
    if (const auto* variable = std::get_if<VariablePtr>(operand)) {
      auto& place = (*variable)->dim() > 0 ? with_dims : without_dims;
      place = place ? wider(*place, (*variable)->dtype()) : (*variable)->dtype();
    } else {
      const double number = std::get<double>(*operand);
      has_number = true;
      has_fraction |= number != std::floor(number) || std::abs(number) >= 0x1p63;
    }
  }
  DType out = with_dims ? *with_dims : without_dims.value_or(DType::float32);
  if (with_dims && without_dims && kind_of(*without_dims) > kind_of(out)) out = *without_dims;
  if (has_fraction && kind_of(out) < 2) return DType::float32;
  if (has_number && kind_of(out) == 0) return DType::int64;
  return out;
}

void check_reach(DType dtype, double number) {
  if (is_floating(dtype) || dtype == DType::boolean) return;
  const bool is_signed = dtype != DType::uint8;
  const double end = std::ldexp(1.0, static_cast<int>(size_of(dtype)) * 8 - (is_signed ? 1 : 0));
  if (std::trunc(number) < end && std::trunc(number) >= (is_signed ? -end : 0)) return;
  fail(Errc::value, "{} is no number of {}", std::isnan(number) ? std::abs(number) : number, name_of(dtype));
}

DType compute_type(DType dtype) {
  if (dtype == DType::float64) return dtype;
  return is_floating(dtype) || dtype == DType::boolean ? DType::float32 : DType::int64;
}

}  // namespace cbk::compute
