// Limits how far a few bytes of a checkpoint may expand when its tensors are read.
#pragma once

#include "host/formats/checkpoint.hpp"

namespace cbk {

/// Makes tensors unreadable that show more data than their files hold: elements repeated by strides, data
/// that was never written or is compressed more than filters can, or data shared by several tensors. The
/// largest are removed until the rest is within `limit` (unset: 1 GiB) for the whole checkpoint, so that it
/// can be read in less than a minute. Only checkpoints that may exceed the limit are examined closely.
void limit_expansion(Checkpoint& checkpoint, std::optional<uint64_t> limit);

}  // namespace cbk
