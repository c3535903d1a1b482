// The kind of a file, from its first and last bytes.
#pragma once

#include <string>

#include "host/base/file.hpp"

namespace cbk {

enum class Container { torch, safetensors, h5, tensorflow, npy, npz, gguf, shard_index, other };

/// `shard_index` is for a JSON text with a weight map.
Container detect(const MappedFile& file);

/// Throws the reason why a file is not a checkpoint: "it is a Git LFS pointer, …".
[[noreturn]] void fail_as_foreign(const MappedFile& file);

}  // namespace cbk
