// The limit of what a few bytes of a checkpoint may become when its tensors are read.
#pragma once

#include "host/formats/checkpoint.hpp"

namespace cbk {

/// Makes tensors unreadable that show more than their files hold: elements that strides repeat, data that was
/// never written, or is packed beyond what filters reach, or that several tensors share. The largest of them
/// go, until the rest stays within `limit` (unset: 1 GiB) for the checkpoint as a whole: what remains is read
/// in less than a minute. Only checkpoints that may exceed it are looked at closely.
void limit_expansion(Checkpoint& checkpoint, std::optional<uint64_t> limit);

}  // namespace cbk
