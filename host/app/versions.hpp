// The versions of the program and of its libraries.
#pragma once

#include <string>

namespace cbk::app {

/// "cbk 0.2.0" in the first line, then a library in each, with the version that the program was built with.
std::string versions();

}  // namespace cbk::app
