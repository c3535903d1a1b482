// The entries of a folder.
#pragma once

#include <vector>

#include "host/base/file.hpp"

namespace cbk {

/// In no order. Errors: `io`.
std::vector<fs::directory_entry> entries_of(const fs::path& folder);

}  // namespace cbk
