// TensorFlow checkpoints (Saver V2, "bundles") as a lazy tree: a flat dict of tensors in the order of their
// names.
#pragma once

#include <memory>

#include "host/base/memory_budget.hpp"
#include "host/formats/checkpoint.hpp"

namespace cbk::tensorflow {

/// Whether a file is the index of a bundle, by its last bytes.
bool looks_like_index(ByteView file);

/// `index`: the file `<prefix>.index`. No tensor is read (but texts of partitioned variables and of
/// big-endian files). Errors: `format`, naming the variable; they do not name the path: the caller does.
/// `memory`: the budget of the checkpoint (see `or_own`).
Checkpoint read(const std::shared_ptr<const MappedFile>& index, const OpenOptions& options = {},
                MemoryPtr memory = {});

}  // namespace cbk::tensorflow
