// The limit of what a few bytes of a checkpoint may become when they are written.
#pragma once

#include <optional>

#include "host/formats/writer.hpp"

namespace cbk {

/// Counts what would be written beyond the bytes that the sources hold: elements that strides repeat or that
/// several items share, data that is compressed or was never written, tensors filled with one number. Errors:
/// `value` beyond `limit`; unset: the larger of 16 GiB and 1,000 times the size of the source files.
void check_expansion(const Writer& writer, std::optional<uint64_t> limit);

}  // namespace cbk
