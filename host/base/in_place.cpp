#include "host/base/in_place.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host/base/file_lock.hpp"

namespace cbk {

InPlaceFile::InPlaceFile(fs::path path) : path_(std::move(path)) {
  fd_ = open_file("change", path_, O_RDWR | O_NONBLOCK);
  // File systems without locks are accepted, as in HDF5.
  if (lock_file(fd_) == FileLock::of_another) {
    fail(Errc::io, "cannot change '{}': another program has it open; close it there first", path_.string());
  }
}

uint64_t InPlaceFile::size() const {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) fail_errno("look at", path_.string());
  return static_cast<uint64_t>(info.st_size);
}

bool InPlaceFile::is(const MappedFile& file) const {
  struct stat mine {};
  struct stat other {};
  return ::fstat(fd_.get(), &mine) == 0 && ::fstat(file.fd(), &other) == 0 && mine.st_dev == other.st_dev &&
         mine.st_ino == other.st_ino;
}

void InPlaceFile::write(uint64_t offset, ByteView bytes) {
  write_at(fd_, offset, bytes, path_);
}

void InPlaceFile::resize(uint64_t size) {
  if (retried([&] { return ::ftruncate(fd_.get(), static_cast<off_t>(size)); }) != 0)
    fail_errno("resize", path_.string());
}

bool InPlaceFile::is_mostly_on_disk() const {
  // cachestat (Linux 6.5): how many pages wait to be written. If it is not supported, sync.
  constexpr long cachestat = 451;
  constexpr uint64_t page = 4096;
  constexpr uint64_t little = (64ULL << 20) / page;
  struct Range {
    uint64_t offset = 0;
    uint64_t length = 0;  // up to the end
  } range;
  struct Pages {
    uint64_t cached = 0;
    uint64_t dirty = 0;
    uint64_t writeback = 0;
    uint64_t evicted = 0;
    uint64_t recently_evicted = 0;
  } pages;
  return ::syscall(cachestat, fd_.get(), &range, &pages, 0U) != 0 || pages.dirty + pages.writeback <= little;
}

void InPlaceFile::settle(uint64_t offset) {
  if (is_mostly_on_disk()) return sync();
  constexpr unsigned until_written =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  const auto write_out = [&] {
    return ::sync_file_range(fd_.get(), static_cast<off_t>(offset), 0, until_written);
  };
  if (retried(write_out) == 0) return;
  if (errno != ENOSYS && errno != EINVAL) fail_errno("sync", path_.string());
  sync();  // a system that knows no ranges
}

void InPlaceFile::sync() {
  sync_to_disk(fd_, path_);
}

}  // namespace cbk
