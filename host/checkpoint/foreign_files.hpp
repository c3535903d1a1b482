// Files that are not checkpoints of a known format: what they are, for messages.
#pragma once

#include "host/base/file.hpp"

namespace cbk {

/// Whether it is a text, by its first bytes.
bool is_text_file(const MappedFile& file);

/// Throws the reason why a file is not a checkpoint: "it is a Git LFS pointer, …".
[[noreturn]] void fail_as_foreign(const MappedFile& file);

}  // namespace cbk
