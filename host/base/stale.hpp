// Temporary names beside a target ("model.mdl.1f3a9c04.tmp"; "….old" for the file that is being replaced),
// and those that a killed program left there.
//
// A program that uses such a name locks the file. A file that nobody locks is left over.
#pragma once

#include <mutex>
#include <vector>

#include "host/base/file.hpp"

namespace cbk {

/// An unused name: for the new `target`, and for the old `target` while the new one replaces it.
fs::path temporary_sibling(const fs::path& target);
/// The one with these eight hexadecimal digits, for processes that share a file.
fs::path temporary_sibling(const fs::path& target, std::string_view tag);
std::string new_tag();
/// "model.mdl.1f3a9c04.job": a file that is filled by several programs, one after the other. Nobody removes
/// it as left over.
fs::path kept_sibling(const fs::path& target, std::string_view tag);
fs::path old_sibling(const fs::path& target);

/// Locks an open file or folder until it is closed. File systems without locks are accepted.
void lock_as_in_use(const FileDescriptor& fd) noexcept;

/// Whether another program has locked it, or may have, where a file system has no locks. If not, this locks
/// it until `fd` is closed.
bool is_in_use(const FileDescriptor& fd) noexcept;

/// Whether `name` is one that `temporary_sibling` gives for `target`.
bool is_temporary_of(const fs::path& name, const fs::path& target);
/// Whether `name` is one that `kept_sibling` gives for `target`.
bool is_kept_of(const fs::path& name, const fs::path& target);
/// The files in a folder with such a name.
std::vector<fs::path> temporaries_in(const fs::path& folder);

/// Removes leftovers beside `targets`: unfinished new files always; old files only if the new ones exist,
/// because after a kill the old ones may be all that is left.
void remove_unfinished(const std::vector<fs::path>& targets) noexcept;
void remove_replaced(const std::vector<fs::path>& targets) noexcept;

/// Registers a name that must not outlive the program. Call this before it exists.
void remember_temporary(const fs::path& name);
void forget_temporary(const fs::path& name) noexcept;

/// For a program that must end at once (a second Ctrl-C): removes all temporaries.
void remove_temporaries() noexcept;

/// While it lives, `remove_temporaries` waits: a file with a temporary name may be the only old copy.
std::unique_lock<std::timed_mutex> hold_temporaries();

}  // namespace cbk
