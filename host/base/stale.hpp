// Temporary names beside a target ("model.mdl.1f3a9c04.tmp"), and those that a killed program left there.
//
// Whoever works under such a name locks what it names. What nobody locks is left over.
#pragma once

#include "host/base/file.hpp"

namespace cbk {

/// A temporary name for `target` that nobody uses.
fs::path temporary_sibling(const fs::path& target);

/// Locks an open file or folder until it is closed. File systems without locks are taken as they are.
void lock_as_in_use(int fd) noexcept;

/// Removes what was left over beside `target`.
void remove_left_over(const fs::path& target) noexcept;

}  // namespace cbk
