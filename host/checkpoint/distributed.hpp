// Files of torch.distributed.checkpoint. A folder of them is one checkpoint: each file holds pieces of
// tensors, and `.metadata` says where they belong.
#pragma once

#include "host/base/named_files.hpp"
#include "host/formats/checkpoint.hpp"

namespace cbk {

/// Fails (`usage`) for a file with pieces, by its name.
void refuse_distributed(const MappedFile& file);

/// Errors: `unsupported` for a safetensors file with metadata that marks its tensors as pieces.
void refuse_pieces(const Checkpoint& checkpoint);

/// The file `.metadata` of a folder; nullptr if it is not one of torch.distributed.checkpoint. Errors:
/// `missing` for pieces without it.
std::shared_ptr<const MappedFile> metadata_in(const NamedFiles& files, const fs::path& folder);

}  // namespace cbk
