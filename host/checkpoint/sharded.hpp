// Checkpoints in several files with an index (model.safetensors.index.json, pytorch_model.bin.index.json),
// both ways.
#pragma once

#include <functional>
#include <memory>

#include "host/checkpoint/formats.hpp"

namespace cbk {

/// Whether a file is the index of a sharded checkpoint: a JSON text with a "weight_map".
bool is_shard_index(const MappedFile& file);

/// Opens a single file by its content.
using OpenFile = std::function<Checkpoint(const FilePtr& file)>;

/// The keys are in the order of the file names, and within a file in the order of the index; then come the
/// aliases that safetensors shards record. Only the shards' headers are read. `memory` is charged. Errors:
/// `format` for a bad index, missing shards (all are named), or keys that their shard lacks.
Checkpoint read_sharded(const FilePtr& index, const OpenOptions& options, const OpenFile& open_file,
                        const MemoryPtr& memory);

/// Whether a companion of this name goes into the folder of a sharded checkpoint.
inline bool is_inside_folder(const fs::path& name) {
  return !name.is_absolute();
}

/// A folder of shards with their index, of at most `options.shard_size` bytes each. Errors: `usage` for a
/// format without shards.
std::unique_ptr<Writer> make_sharded_writer(const Value& root, const fs::path& target, const Format& format,
                                            const WriteOptions& options);

}  // namespace cbk
