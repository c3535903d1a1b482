// The elements of a tensor on a stream, block by block, for `cbk serve`.
#pragma once

#include <cstdio>

#include "host/tensor/tensor.hpp"

namespace cbk {

/// Writes the elements in C order: blocks of bytes, each behind a line {"bytes":N}. A block is read before
/// its line is written, so after an error the stream is still at the begin of a line. Errors: those of
/// reading, `io`.
void write_framed(const Tensor& tensor, std::FILE* stream);

/// The range of an open file that the elements are, as they are and in C order, if they are one. Who reads it
/// calls `verify_read` (expression.hpp).
std::optional<Storage::FileRange> file_range(const Tensor& tensor);

}  // namespace cbk
