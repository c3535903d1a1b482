// Locks of whole files and folders between programs.
#pragma once

#include "host/base/file.hpp"

namespace cbk {

enum class FileLock {
  ours,         // until the file is closed
  of_another,   // program, or of this one through another descriptor
  unsupported,  // by the file system
};
enum class LockFor { one, several };

/// Locks an open file or folder, without waiting.
FileLock lock_file(const FileDescriptor& fd, LockFor kind = LockFor::one) noexcept;

}  // namespace cbk
