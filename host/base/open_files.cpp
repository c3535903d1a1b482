#include "host/base/open_files.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "host/base/bytes.hpp"
#include "host/base/error.hpp"

namespace cbk {
namespace {

/// More than the number of shards that five digits can count. Without a limit, programs that are called from
/// here would suffer: some go through all possible descriptors.
constexpr rlim_t most = 1U << 17;

/// For an index, small files beside the checkpoint, folders and libraries.
constexpr size_t reserve = 16;

size_t open_now() {
  std::error_code error;
  const std::filesystem::directory_iterator all("/proc/self/fd", error);
  return error ? 0 : static_cast<size_t>(std::distance(begin(all), end(all)));
}

}  // namespace

void raise_open_files_limit() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, most);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void check_open_files(size_t files, uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const size_t used = open_now() + reserve;
  const size_t room = limit.rlim_cur > used ? static_cast<size_t>(limit.rlim_cur) - used : 0;
  if (files <= room) return;
  if (room == 0) {
    fail(Errc::usage, "too many files are open; the limit (ulimit -n) is {}, raise it",
         static_cast<uint64_t>(limit.rlim_cur));
  }
  // Two adjacent shards are larger than one shard's size, or they would be one.
  const uint64_t fits = room > 1 ? 2 * (bytes / (room - 1) + 1) : bytes;
  fail(
      Errc::usage,
      "{} files would be open at once, but only {} can be (ulimit -n is {}); try a shard size of {}B or more",
      files, room, static_cast<uint64_t>(limit.rlim_cur), fits);
}

}  // namespace cbk
