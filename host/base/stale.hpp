// Temporary names beside a target ("model.mdl.1f3a9c04.tmp"; "….old" for what is being replaced), and those
// that a killed program left there.
//
// Whoever works under such a name locks what it names. What nobody locks is left over.
#pragma once

#include <mutex>
#include <vector>

#include "host/base/file.hpp"

namespace cbk {

/// A name that nobody uses: for what becomes `target`, and for the old `target` while the new one takes its
/// place.
fs::path temporary_sibling(const fs::path& target);
fs::path old_sibling(const fs::path& target);

/// Locks an open file or folder until it is closed. File systems without locks are taken as they are.
void lock_as_in_use(const FileDescriptor& fd) noexcept;

/// Whether another program has locked it; if none, it is ours until `fd` is closed.
bool is_in_use(const FileDescriptor& fd) noexcept;

/// Whether `name` is one that `temporary_sibling` gives for `target`.
bool is_temporary_of(const fs::path& name, const fs::path& target);
/// What has such a name in a folder.
std::vector<fs::path> temporaries_in(const fs::path& folder);

/// Removes what was left over beside `targets`: new ones that were never finished, at any time; old ones only
/// when the new ones are there, since after a kill they may be all that is left.
void remove_unfinished(const std::vector<fs::path>& targets) noexcept;
void remove_replaced(const std::vector<fs::path>& targets) noexcept;

/// Names that must not outlive the program, from before they exist.
void remember_temporary(const fs::path& name);
void forget_temporary(const fs::path& name) noexcept;

/// For a program that has to end at once (a second Ctrl-C): removes what has a temporary name.
void remove_temporaries() noexcept;

/// While it lives, `remove_temporaries` waits: what has a temporary name may be the only old one there is.
std::unique_lock<std::timed_mutex> hold_temporaries();

}  // namespace cbk
