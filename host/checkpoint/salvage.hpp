// The readable rest of a checkpoint with a truncated file.
#pragma once

#include "host/formats/checkpoint.hpp"

namespace cbk {

/// Removes values that cannot be read, and lists them in `lost` and in a warning. Errors: `format` if nothing
/// is left.
void leave_out_lost(Checkpoint& checkpoint);

}  // namespace cbk
