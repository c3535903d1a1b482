// A second wall around untrusted converters, made by the kernel: what gets out of the sandbox of Lua still
// cannot write outside of the output's folder, reach a network or a service, or signal other programs.
#pragma once

#include <vector>

#include "host/base/file.hpp"

namespace cbk::app {

/// For this thread, those that it starts and their programs, until their end. Files can be made, changed and
/// removed below `folders` alone; missing ones are made. False if the kernel lacks Landlock (Linux 5.19):
/// files are not confined then. Not covered: modes, times and extended attributes. Errors: `io` if the kernel
/// refuses.
bool confine(const std::vector<fs::path>& folders);

/// At the end: removes those that were made and are empty. A killed program's are removed as well.
void remove_empty_folders() noexcept;

}  // namespace cbk::app
