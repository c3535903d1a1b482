// Safetensors files as a lazy tree: a flat dict of tensors in the order of the header.
#pragma once

#include <memory>

#include "host/base/memory_budget.hpp"
#include "host/formats/checkpoint.hpp"

namespace cbk::safetensors {

/// Whether a file may be safetensors, by its first bytes: a length that is not text, then "{".
bool looks_like_safetensors(ByteView head);

/// Elements smaller than a byte become an Object that names their type and shape. Errors: `format`, also for
/// more tensors than `memory` has room for. They do not name the path: the caller does.
Checkpoint read(std::shared_ptr<const MappedFile> file, const OpenOptions& options, MemoryBudget& memory);

/// { metadata, tensors = [{name, dtype, shape, begin, stop}] } in the order of the header; the places count
/// from the start of the file. Every dtype can be listed.
Value inspect(const fs::path& path);

}  // namespace cbk::safetensors
