// Limits how far a few bytes of a checkpoint may expand when they are written.
#pragma once

#include <optional>

#include "host/formats/writer.hpp"

namespace cbk {

/// Counts what would be written beyond the bytes in the sources: elements repeated by strides or shared by
/// several items, data that is compressed or was never written, tensors filled with one number. Errors:
/// `value` beyond `limit`; unset: the larger of 16 GiB and 1,000 times the size of the source files.
void check_expansion(const Writer& writer, std::optional<uint64_t> limit);

}  // namespace cbk
