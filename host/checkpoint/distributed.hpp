// Files of torch.distributed.checkpoint. A folder of them is one checkpoint: each file holds pieces of
// tensors, and `.metadata` says where they belong.
#pragma once

#include "host/base/file.hpp"
#include "host/formats/checkpoint.hpp"

namespace cbk {

/// Fails (`unsupported`) for a file of such a folder, by its name or its content.
void refuse_distributed(const MappedFile& file);

/// Errors: `unsupported` for a safetensors file with metadata that marks its tensors as pieces.
void refuse_pieces(const Checkpoint& checkpoint);

/// Whether a folder is one, by its `.metadata` and the names of its files.
bool is_distributed_folder(const fs::path& folder);

/// Errors: `unsupported`, always.
[[noreturn]] void fail_as_distributed_folder(const fs::path& folder);

}  // namespace cbk
