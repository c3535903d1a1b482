// NeMo's files: an uncompressed tar with a model's config and its state dict, which is read in its place
// (FORMAT.md).
#pragma once

#include <memory>

#include "host/formats/checkpoint.hpp"

namespace cbk::nemo {

bool looks_like_tar(ByteView head);

/// The member `model_weights.ckpt`. Errors: `format` for a damaged archive; `missing` if it has no such
/// member; `unsupported` for weights in parts of several ranks; and those of torch::read.
Checkpoint read(const std::shared_ptr<const MappedFile>& file, const OpenOptions& options,
                const MemoryPtr& memory);

}  // namespace cbk::nemo
