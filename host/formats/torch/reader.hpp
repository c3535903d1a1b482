// Torch checkpoints, zip and legacy, as a lazy tree. Nothing in them is executed.
#pragma once

#include <memory>

#include "host/base/memory_budget.hpp"
#include "host/formats/checkpoint.hpp"

namespace cbk::torch {

/// Whether the first bytes are those of a torch file: a zip archive, a legacy stream, or one of the layouts
/// that `read` refuses by name (tar, PYTORCH1).
bool looks_like_torch(ByteView head);

/// Errors: `format` for a damaged file, `refused` for a pickle that names forbidden globals, `unsupported`
/// for TorchScript, tar and preview files. They do not name the path: the caller does.
/// `memory`: the budget of the checkpoint (see `or_own`).
Checkpoint read(std::shared_ptr<const MappedFile> file, const OpenOptions& options, MemoryPtr memory = {});

}  // namespace cbk::torch
