// Checks output names that come from data: files that are written below a folder stay below it.
#pragma once

#include "host/base/file.hpp"

namespace cbk {

/// `folder / name`. Errors: `value` for a name that is not a file or folder directly in a folder ("", "..",
/// "a/b"); `io` if that name is a symbolic link out of the folder.
fs::path inside(const fs::path& folder, const std::string& name);

}  // namespace cbk
