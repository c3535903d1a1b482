// The door for names of outputs that come out of data: what is written below a folder stays below it.
#pragma once

#include "host/base/file.hpp"

namespace cbk {

/// `folder / name`. Errors: `value` for a name that is no file or folder directly in a folder ("", "..",
/// "a/b"); `io` where that name is a symbolic link out of the folder.
fs::path inside(const fs::path& folder, const std::string& name);

}  // namespace cbk
