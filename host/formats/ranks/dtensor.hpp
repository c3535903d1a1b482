// Files of FSDP2 and tensor parallelism, in which each rank has its part of each tensor as a DTensor.
// Format: FORMAT.md.
#pragma once

#include <vector>

#include "host/formats/ranks/parts.hpp"

namespace cbk::ranks {

/// The parts of all ranks as one tree; the rank is the place in the mesh of devices. Errors: `format` for a
/// hole, a missing part or one of another size, with key and file; `unsupported` for partial sums.
Value join_dtensors(const std::vector<Part>& parts);

}  // namespace cbk::ranks
