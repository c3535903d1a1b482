// Any checkpoint as one lazy tree. Its format is found from the content.
#pragma once

#include "host/formats/checkpoint.hpp"

namespace cbk {

/// `path`: a checkpoint file, an *.index.json, the prefix or the .index of a TensorFlow checkpoint, or a
/// folder with one checkpoint (with TensorFlow's state file, the latest). Errors name the path and what the
/// file looks like.
Checkpoint open_checkpoint(const fs::path& path, const OpenOptions& options = {});

}  // namespace cbk
