// The launcher that started this process as one of several: mpirun, or a daemon of it on another node.
#pragma once

#include <chrono>

#include "host/base/file.hpp"

namespace cbk {

/// Whether the parent is a launcher, or its daemon. Others, such as a shell, may be between them.
bool is_below_launcher();

/// Starts a process of its own, without this one's files, that ends the launcher if that waits without end:
/// for a node that it has lost, or for a rank that was stopped, when nobody else is left to notice. Call it
/// before there are threads. Returns a descriptor: a byte written to it says that this rank has ended well.
/// An empty descriptor: the parent is no launcher.
FileDescriptor guard_launcher(std::chrono::seconds wait);

}  // namespace cbk
