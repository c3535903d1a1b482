#include "host/base/file_lock.hpp"

#include <sys/file.h>

namespace cbk {

FileLock lock_file(const FileDescriptor& fd, LockFor kind) noexcept {
  const int operation = (kind == LockFor::one ? LOCK_EX : LOCK_SH) | LOCK_NB;
  if (retried([&] { return ::flock(fd.get(), operation); }) == 0) return FileLock::ours;
  return errno == EWOULDBLOCK ? FileLock::of_another : FileLock::unsupported;
}

}  // namespace cbk
