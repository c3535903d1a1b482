// A second wall around untrusted converters, made by the kernel: what gets out of the sandbox of Lua still
// cannot write outside of the output's folder, reach a network or a service, or signal other programs.
#pragma once

#include <vector>

#include "host/base/file.hpp"

namespace cbk::app {

/// For this thread, those that it starts and their programs, until their end. Files can be made, changed and
/// removed below `folders` alone; missing ones are made, and removed at the end if they are empty. False if
/// the kernel lacks Landlock (Linux 5.19): files are not confined then. Errors: `io` if the kernel refuses.
bool confine(const std::vector<fs::path>& folders);

}  // namespace cbk::app
