// Element types: one table of names and sizes for every format.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace cbk {

enum class DType : uint8_t {
  boolean,
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  uint64,
  int64,
  float8_e4m3fn,
  float8_e5m2,
  float8_e4m3fnuz,
  float8_e5m2fnuz,
  float8_e8m0fnu,
  float16,
  bfloat16,
  float32,
  float64,
  complex64,
  complex128,
};
inline constexpr int dtype_count = 20;

/// Bytes per element.
uint32_t size_of(DType dtype);

/// PyTorch's name without "torch.": "float32", "bfloat16", "bool", "float8_e4m3fn", …
std::string_view name_of(DType dtype);

/// The inverse of name_of; also takes a "torch." prefix and the common aliases float, half, double, int,
/// long, short, f32, bf16, …
std::optional<DType> find_dtype(std::string_view name);

/// As find_dtype, but an unknown name is a `dtype` error that lists the known ones.
DType parse_dtype(std::string_view name);

bool is_floating(DType dtype);  // float8 to float64
bool is_complex(DType dtype);
bool is_integer(DType dtype);  // without bool

/// Whether some value of `from` cannot be represented in `to` (float32 → bfloat16, int64 → int32, …).
bool loses(DType from, DType to);

}  // namespace cbk
