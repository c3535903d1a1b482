// GGUF files as a lazy tree: { metadata = …, and the tensors by their names } (FORMAT.md).
#pragma once

#include <memory>
#include <span>

#include "host/formats/checkpoint.hpp"

namespace cbk::gguf {

/// Quantised tensors are float32 tensors with an encoding in their storages. Errors: `format`, `unsupported`.
Checkpoint read(const std::shared_ptr<const MappedFile>& file, const OpenOptions& options,
                const MemoryPtr& memory);

/// A model in several files, in their order: one tree with the metadata of the first. Errors: `format` for a
/// tensor that two files have.
Checkpoint read_split(std::span<const std::shared_ptr<const MappedFile>> files, const OpenOptions& options,
                      const MemoryPtr& memory);

}  // namespace cbk::gguf
