// Pieces of tensors in files of safetensors, as the HuggingFaceStorageWriter of PyTorch writes them for each
// rank. Format: FORMAT.md.
#pragma once

#include <span>

#include "host/formats/checkpoint.hpp"

namespace cbk::ranks {

/// Whether a file of safetensors says where its tensors begin in larger ones.
bool has_pieces(const Checkpoint& file);

/// The whole tensors of all files: as large as their pieces reach. Errors: `format`: a hole or an overlap, a
/// tensor of two dtypes, offsets that do not fit it.
Value join_pieces(std::span<const Checkpoint> files, MemoryBudget& memory);

}  // namespace cbk::ranks
