// Replacing files and folders: whether it is allowed, and what the new one inherits from the old one.
#pragma once

#include <set>
#include <string>

#include "host/base/file.hpp"

namespace cbk {

/// An `exists` error if `target` exists, unless `overwrite`.
void refuse_existing(const fs::path& target, bool overwrite);

/// The file that a write to `target` changes: the file behind a symbolic link. Fails if it exists (`exists`)
/// unless `overwrite`, and always (`io`) if it is not a regular file, is a broken link, or cannot be
/// replaced:
/// better before the work than after it. Also fails for a link out of its folder (`refused`), because nobody
/// asked to replace its target.
fs::path replaceable_file(const fs::path& target, bool overwrite);

/// The same for a folder. It may be a link to anywhere, because the user named it. A folder that contains
/// other folders than `inner` is refused, and so are folders in these: files are carried over one by one.
fs::path replaceable_folder(const fs::path& target, bool overwrite, const std::set<std::string>& inner = {});

/// Gives the new file the access rights of the replaced one: owner and group as far as permitted, mode, and
/// access control list.
void take_over_access(const fs::path& replaced, const FileDescriptor& fd);

}  // namespace cbk
