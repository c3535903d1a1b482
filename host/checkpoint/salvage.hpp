// What is left of a checkpoint whose file is cut short.
#pragma once

#include "host/formats/checkpoint.hpp"

namespace cbk {

/// Leaves out what cannot be read, and names it in `lost` and in a warning. Errors: `format`, where nothing
/// is left.
void leave_out_lost(Checkpoint& checkpoint);

}  // namespace cbk
