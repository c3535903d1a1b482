// The number of files that may be open at once. An output of many files keeps them all open: none gets its
// name before the last byte is written.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cbk {

/// Raises the soft limit as far as a user may, for the whole program.
void raise_open_files_limit() noexcept;

/// Fails (`usage`) if writing `files` files of `bytes` in total would exceed the limit of open files. The
/// message names a shard size that works.
void check_open_files(size_t files, uint64_t bytes);

}  // namespace cbk
