// What an output replaces: whether it may, and what the new one takes over from the old one.
#pragma once

#include "host/base/file.hpp"

namespace cbk {

/// An `exists` error when something is at `target`, unless `overwrite`.
void refuse_existing(const fs::path& target, bool overwrite);

/// What a write to `target` changes: the file behind a symbolic link. Refuses what is there (`exists`)
/// unless `overwrite`, and always (`io`) what is not a regular file, a link to nothing, and what the system
/// will not let us replace, which is better known before the work than after it; also a link that leads out
/// of its folder (`refused`), which names a file that nobody asked to replace.
fs::path replaceable_file(const fs::path& target, bool overwrite);

/// The same for a folder, which may be a link to anywhere: the user has named it. One with folders in it is
/// refused: files are carried over one by one.
fs::path replaceable_folder(const fs::path& target, bool overwrite);

/// Who may read and write what is replaced, may read and write what takes its place: owner and group where
/// we may give them, mode, and access control list.
void take_over_access(const fs::path& replaced, const FileDescriptor& fd);

}  // namespace cbk
