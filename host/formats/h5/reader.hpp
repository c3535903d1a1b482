// Cerebras H5 checkpoints of the formats 0.1 to 0.5, and flat H5 files of variables, as one lazy tree.
#pragma once

#include <memory>

#include "host/base/file.hpp"
#include "host/base/memory_budget.hpp"
#include "host/formats/checkpoint.hpp"

namespace cbk::h5 {

/// Whether an HDF5 signature is at one of the places where HDF5 looks for it.
bool is_hdf5(ByteView bytes);

/// Errors: `format` for damage and for files that are not checkpoints, `unsupported` for newer formats and
/// foreign filters, `refused` for pickles that would run code.
/// `memory`: the budget of the checkpoint (see `or_own`).
Checkpoint read(std::shared_ptr<const MappedFile> file, const OpenOptions& options, MemoryPtr memory = {});

}  // namespace cbk::h5
