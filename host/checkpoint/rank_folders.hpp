// Folders in which each rank of a training run wrote a file: DeepSpeed's ZeRO, DTensors, Meta's and
// Megatron's tensor-parallel parts. They are recognised by the names of their files.
#pragma once

#include <optional>

#include "host/base/named_files.hpp"
#include "host/formats/checkpoint.hpp"

namespace cbk {

/// The checkpoint of all ranks in this very folder; nothing if it has none. Errors: `missing` for a file of a
/// rank that is not there, `unsupported` for parallelism that is not joined, those of the parts.
std::optional<Checkpoint> read_rank_folder(const fs::path& folder, const OpenOptions& options,
                                           const MemoryPtr& memory);

/// The folder in `folder` with its checkpoint: the latest one, if a file names it, or the model of
/// accelerate's FSDP. Errors: `missing`: it is not there; `refused`: it is a symbolic link.
std::optional<fs::path> inner_of_ranks(const fs::path& folder, const OpenOptions& options);

/// Whether a file only says which checkpoint of its folder is the latest.
bool names_latest(const fs::path& file);

}  // namespace cbk
