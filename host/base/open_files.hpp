// How many files may be open at once. An output of many files keeps them all open: none has a name before the
// last byte is written.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cbk {

/// Raises the soft limit as far as a user may, for the whole program.
void raise_open_files_limit() noexcept;

/// Refuses (`usage`) to write `files` files of `bytes` in all where the limit does not allow that many beside
/// those that are open; the message names a shard size that does.
void check_open_files(size_t files, uint64_t bytes);

}  // namespace cbk
