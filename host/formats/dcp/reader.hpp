// Folders of torch.distributed.checkpoint as one lazy tree: tensors are joined from pieces that stay in their
// files, each of which is opened when it is read.
#pragma once

#include <memory>

#include "host/formats/checkpoint.hpp"

namespace cbk::dcp {

/// `metadata`: the file `.metadata` of a folder. Errors: `format`: a hole, an overlap, a piece that a file
/// does not have, by key and file; `io` for a missing file; and those of read_metadata.
Checkpoint read(const std::shared_ptr<const MappedFile>& metadata, const OpenOptions& options,
                const MemoryPtr& memory);

}  // namespace cbk::dcp
