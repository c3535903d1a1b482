// The header of NumPy's array files (FORMAT.md).
#pragma once

#include <string>

#include "host/base/file.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk::npy {

struct Header {
  DType dtype = DType::float32;
  bool is_big_endian = false;
  bool is_column_major = false;
  Shape shape;
  uint64_t data_start = 0;
};

bool looks_like_npy(ByteView head);

/// The number of bytes before the elements, from the first `least_header` bytes. Errors: `format`.
uint64_t size_of_header(ByteView head);
inline constexpr uint64_t least_header = 12;

/// Errors: `format`; `dtype` for elements that are not numbers.
Header read_header(ByteView file);

/// All bytes before the elements. Errors: `dtype` for dtypes that NumPy lacks (bfloat16, float8).
std::string write_header(DType dtype, const Shape& shape);

}  // namespace cbk::npy
