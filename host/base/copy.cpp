#include "host/base/copy.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "host/base/interrupt.hpp"

namespace cbk {
namespace {

constexpr uint64_t step = 64ULL << 20;     // between looks at Ctrl-C
constexpr uint64_t buffer = 256ULL << 10;  // stays in the second-level cache

/// Bytes copied inside the kernel; 0 if it cannot do that between these files.
uint64_t copy_in_kernel(const MappedFile& source, uint64_t offset, uint64_t length,
                        const StagedFile& target) {
  auto from = static_cast<off_t>(offset);
  auto to = from;
  const ssize_t done =
      retried([&] { return ::copy_file_range(source.fd(), &from, target.fd(), &to, length, 0); });
  if (done >= 0) return static_cast<uint64_t>(done);
  if (errno == ENOSPC || errno == EDQUOT) fail_errno("write", target.target().string());
  return 0;
}

uint64_t copy_through_memory(const MappedFile& source, uint64_t offset, uint64_t length, StagedFile& target,
                             Bytes& memory) {
  memory.resize(buffer);
  const uint64_t wanted = std::min(length, buffer);
  const ssize_t got =
      retried([&] { return ::pread(source.fd(), memory.data(), wanted, static_cast<off_t>(offset)); });
  if (got < 0) fail_errno(fmt::format("read byte {} of", offset), source.path().string());
  if (got == 0) fail(Errc::io, "cannot read '{}': it became shorter", source.path().string());
  target.write(offset, ByteView(memory).first(static_cast<size_t>(got)));
  return static_cast<uint64_t>(got);
}

}  // namespace

void copy_file(const MappedFile& source, uint64_t length, StagedFile& target,
               const std::function<void(uint64_t)>& progress) {
  Bytes memory;
  bool in_kernel = true;
  for (uint64_t done = 0; done < length;) {
    check_interrupt();
    const uint64_t end = std::min(length, done + step);
    while (done < end) {
      uint64_t count = in_kernel ? copy_in_kernel(source, done, end - done, target) : 0;
      if (count == 0) {
        in_kernel = false;
        count = copy_through_memory(source, done, end - done, target, memory);
      }
      done += count;
    }
    if (progress) progress(done);
  }
}

}  // namespace cbk
