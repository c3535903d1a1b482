// What a file is, told from its first and last bytes.
#pragma once

#include <string>

#include "host/base/file.hpp"

namespace cbk {

enum class Container { torch, safetensors, h5, tensorflow, shard_index, other };

/// `shard_index` is for a JSON text with a weight map.
Container detect(const MappedFile& file);

/// Throws what is to be said about a file that is no checkpoint: "it is a Git LFS pointer, …".
[[noreturn]] void fail_as_foreign(const MappedFile& file);

}  // namespace cbk
