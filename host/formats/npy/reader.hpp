// NumPy's array files as checkpoints of one tensor (FORMAT.md).
#pragma once

#include "host/base/file.hpp"
#include "host/formats/checkpoint.hpp"

namespace cbk::npy {

/// Errors: `format`, `dtype`.
Checkpoint read(const std::shared_ptr<const MappedFile>& file);

}  // namespace cbk::npy
