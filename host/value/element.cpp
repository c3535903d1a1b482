#include "host/value/element.hpp"

#include <array>
#include <charconv>

#include "host/tensor/kernels/cast.hpp"
#include "host/value/kind.hpp"

namespace cbk {
namespace {

Value unsigned_value(uint64_t value) {
  if (value <= INT64_MAX) return static_cast<int64_t>(value);
  return Value::integer(std::to_string(value));
}

template <typename To>
To converted(DType from, ByteView element, DType to) {
  To value{};
  cast_elements(from, element.data(), to, reinterpret_cast<std::byte*>(&value), 1);
  return value;
}

std::string number_text(const Value& number) {
  if (number.is(Value::Kind::real)) return fmt::format("{}", number.as_double());
  const Integer& whole = number.as_integer();
  return whole.fits ? std::to_string(whole.value) : *whole.digits;
}

}  // namespace

void check_fits(DType dtype, const Value& value) {
  const bool is_integer_value = value.is(Value::Kind::integer);
  if (!is_integer_value && !value.is(Value::Kind::real)) return;
  const DType part = dtype == DType::complex64    ? DType::float32
                     : dtype == DType::complex128 ? DType::float64
                                                  : dtype;
  std::array<std::byte, sizeof(double)> out{};
  const auto is_lost = [&](DType from, auto number) {
    return cast_elements(from, reinterpret_cast<const std::byte*>(&number), part, out.data(), 1).are_grave();
  };
  const bool is_wide = is_integer_value && !value.as_integer().fits;
  if (is_wide && dtype == DType::uint64) return;  // full_tensor looks at the digits
  if (is_integer_value && !is_wide ? is_lost(DType::int64, value.as_integer().value)
                                   : is_lost(DType::float64, value.as_double()))
    fail(Errc::value, "{} does not fit {}", number_text(value), name_of(dtype));
}

Value element_value(DType dtype, ByteView element) {
  if (dtype == DType::boolean) return element[0] != std::byte{0};
  if (dtype == DType::uint64) return unsigned_value(load_le<uint64_t>(element.data()));
  if (is_integer(dtype)) return converted<int64_t>(dtype, element, DType::int64);
  if (dtype == DType::complex64) {
    return std::complex<double>(load_le<float>(element.data()), load_le<float>(element.data() + 4));
  }
  if (dtype == DType::complex128) {
    return std::complex<double>(load_le<double>(element.data()), load_le<double>(element.data() + 8));
  }
  return converted<double>(dtype, element, DType::float64);
}

Tensor full_tensor(DType dtype, const Shape& shape, const Value& fill) {
  switch (fill.kind()) {
    case Value::Kind::none:
      return Tensor::full(dtype, shape, 0);
    case Value::Kind::boolean:
      return Tensor::full(dtype, shape, fill.as_bool() ? 1 : 0);
    case Value::Kind::real:
      return Tensor::full(dtype, shape, fill.as_double());
    case Value::Kind::integer: {
      // Integers beyond 2^53 must not go through a double.
      const Integer& whole = fill.as_integer();
      if (!is_integer(dtype) || (!whole.fits && dtype != DType::uint64))
        return Tensor::full(dtype, shape, fill.as_double());
      std::byte element[8] = {};
      if (whole.fits) {
        cast_elements(DType::int64, reinterpret_cast<const std::byte*>(&whole.value), dtype, element, 1);
      } else {
        const char* end = whole.digits->data() + whole.digits->size();
        uint64_t value = 0;
        const auto [read, error] = std::from_chars(whole.digits->data(), end, value);
        if (read != end || error != std::errc{})
          fail(Errc::value, "{} does not fit {}", *whole.digits, name_of(dtype));
        store_le(element, value);
      }
      return Tensor::full_bytes(dtype, shape, ByteView(element, size_of(dtype)));
    }
    default:
      fail(Errc::value, "a fill value that is {}", a_kind(fill));
  }
}

}  // namespace cbk
