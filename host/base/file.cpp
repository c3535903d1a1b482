#include "host/base/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <set>
#include <utility>

#include "host/base/scratch.hpp"
#include "host/base/stale.hpp"

namespace cbk {
namespace {

fs::path folder_of(const fs::path& path) {
  fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

/// Names that must not outlive the program: temporary files and folders beside their targets.
struct StagedNames {
  std::timed_mutex mutex;
  std::set<fs::path> names;

  void add(const fs::path& name) {
    const std::lock_guard lock(mutex);
    names.insert(name);
  }
  void forget(const fs::path& name) {
    const std::lock_guard lock(mutex);
    names.erase(name);
  }
};

/// Never destroyed: the program may end while other threads still write.
StagedNames& staged_names() {
  static auto* names = new StagedNames;
  return *names;
}

/// "out/" names the same folder as "out".
fs::path without_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

void refuse_existing(const fs::path& target, bool overwrite) {
  std::error_code ignored;
  if (!overwrite && fs::exists(fs::symlink_status(target, ignored))) {
    fail(Errc::exists, "'{}' exists already", target.string());
  }
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int FileDescriptor::release() {
  return std::exchange(fd_, -1);
}

std::shared_ptr<const MappedFile> MappedFile::open(const fs::path& path) {
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  // O_NONBLOCK: opening a FIFO must not hang.
  file->fd_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file->fd_.get() < 0) fail_errno("open", path.string());
  struct stat info {};
  if (::fstat(file->fd_.get(), &info) != 0) fail_errno("look at", path.string());
  if (S_ISDIR(info.st_mode)) fail_errno("read", path.string(), EISDIR);
  if (!S_ISREG(info.st_mode)) fail(Errc::io, "cannot read '{}': not a regular file", path.string());
  file->size_ = static_cast<uint64_t>(info.st_size);
  file->device_ = info.st_dev;
  file->inode_ = info.st_ino;
  if (file->size_ > 0) {
    void* data = ::mmap(nullptr, file->size_, PROT_READ, MAP_SHARED, file->fd_.get(), 0);
    if (data == MAP_FAILED) fail_errno("map", path.string());
    file->data_ = static_cast<const std::byte*>(data);
  }
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

ByteView MappedFile::slice(uint64_t offset, uint64_t length, std::string_view what) const {
  if (offset > size_ || length > size_ - offset) {
    fail(Errc::format, "{} should lie at bytes {} to {}, but the file has {} bytes; is it cut short?", what,
         offset, offset + length, size_);
  }
  return bytes().subspan(offset, length);
}

namespace {

/// Below this, the page faults of a mapping cost less than a system call.
constexpr uint64_t smallest_pread = 16ULL << 10;

void pread_all(int fd, uint64_t offset, std::span<std::byte> out, const fs::path& path) {
  while (!out.empty()) {
    const ssize_t done = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_errno("read", path.string());
    if (done == 0)
      fail(Errc::io, "'{}' ends at byte {}: it became shorter while it was read", path.string(), offset);
    offset += static_cast<uint64_t>(done);
    out = out.subspan(static_cast<size_t>(done));
  }
}

}  // namespace

void MappedFile::read(uint64_t offset, std::span<std::byte> out) const {
  const ByteView source = slice(offset, out.size(), "a range");
  if (out.size() < smallest_pread) {
    std::copy(source.begin(), source.end(), out.begin());
    return;
  }
  const auto address = reinterpret_cast<uintptr_t>(out.data());
  if ((address - offset) % io_alignment == 0) {
    pread_all(fd_.get(), offset, out, path_);
    return;
  }
  Scratch aligned(io_piece + io_alignment);
  for (uint64_t done = 0; done < out.size(); done += io_piece) {
    const std::span<std::byte> part = out.subspan(done, std::min<uint64_t>(io_piece, out.size() - done));
    const std::span<std::byte> piece = aligned.bytes().subspan((offset + done) % io_alignment, part.size());
    pread_all(fd_.get(), offset + done, piece, path_);
    std::memcpy(part.data(), piece.data(), piece.size());
  }
}

void MappedFile::drop(uint64_t offset, uint64_t length) const noexcept {
  const uint64_t page = 4096;
  uint64_t begin = align_up(offset, page);
  uint64_t end = std::min(offset + length, size_) / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

bool MappedFile::is_same_file(const fs::path& other) const {
  struct stat info {};
  return ::stat(other.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

std::string read_file(const fs::path& path, uint64_t limit) {
  auto file = MappedFile::open(path);
  if (file->size() > limit) {
    fail(Errc::format, "'{}' has {}; at most {} are expected here", path.string(), format_size(file->size()),
         format_size(limit));
  }
  return std::string(as_text(file->bytes()));
}

void write_file(const fs::path& path, std::string_view content, bool overwrite) {
  StagedFile file(path, overwrite);
  file.write(0, as_bytes(content));
  file.commit();
}

namespace {

/// What a write to `target` changes: the file behind a symbolic link, and never a device or a pipe.
fs::path replaceable_file(const fs::path& target) {
  std::error_code ignored;
  const fs::file_status status = fs::status(target, ignored);
  if (fs::is_directory(status)) fail_errno("write", target.string(), EISDIR);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail(Errc::io, "cannot replace '{}': not a regular file", target.string());
  }
  return fs::is_symlink(fs::symlink_status(target, ignored)) && fs::exists(status) ? fs::canonical(target)
                                                                                   : target;
}

/// The files of a replaced folder are carried over one by one, which folders and devices cannot be.
void refuse_foreign_folders(const fs::path& folder) {
  if (!fs::exists(folder)) return;
  if (!fs::is_directory(folder)) fail(Errc::io, "cannot replace '{}': not a folder", folder.string());
  std::vector<std::string> foreign;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (!entry.is_symlink() && !entry.is_regular_file()) foreign.push_back(entry.path().filename().string());
  }
  if (foreign.empty()) return;
  fail(Errc::io, "cannot replace the folder '{}': it holds more than files: {}", folder.string(),
       listed(foreign, 5));
}

/// The same file under a second name, or a copy where the file system has no hard links.
void carry_over(const fs::path& from, const fs::path& to) {
  if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 0) == 0) return;
  std::error_code error;
  fs::copy(from, to, fs::copy_options::copy_symlinks, error);
  if (error) fail_errno("keep", from.string(), error.value());
}

/// Who may read and write what is replaced, may read and write what takes its place.
void keep_mode(const fs::path& replaced, int fd) {
  struct stat info {};
  constexpr mode_t permissions = 0777;
  if (::stat(replaced.c_str(), &info) == 0) (void)!::fchmod(fd, info.st_mode & permissions);
}

}  // namespace

StagedFile::StagedFile(fs::path target, bool overwrite, const fs::path& staging)
    : target_(std::move(target)), overwrite_(overwrite) {
  refuse_existing(target_, overwrite);
  target_ = replaceable_file(target_);
  // A file without a name vanishes even with kill -9. Where the file system cannot do that: a temporary
  // sibling.
  const fs::path folder = staging.empty() ? folder_of(target_) : staging;
  fd_ = FileDescriptor(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666));
  if (fd_.get() < 0) {
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) fail_errno("write into", folder.string());
    temporary_ = temporary_sibling(folder / target_.filename());
    staged_names().add(temporary_);
    fd_ = FileDescriptor(::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd_.get() < 0) fail_errno("create", temporary_.string());
  }
  lock_as_in_use(fd_.get());
}

StagedFile::~StagedFile() {
  if (temporary_.empty()) return;
  if (fd_.get() >= 0) ::unlink(temporary_.c_str());
  staged_names().forget(temporary_);
}

fs::path StagedFile::working_path() const {
  return temporary_.empty() ? fs::path(fmt::format("/proc/self/fd/{}", fd_.get())) : temporary_;
}

void StagedFile::reserve(uint64_t size) {
  if (size == 0) return;
  int error = ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(size));
  if (error != 0) fail_errno(fmt::format("reserve {} for", format_size(size)), target_.string(), error);
}

void StagedFile::write(uint64_t offset, ByteView bytes) {
  const std::lock_guard turn(*turn_);
  while (!bytes.empty()) {
    ssize_t done = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_errno("write", target_.string());
    offset += static_cast<uint64_t>(done);
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
}

void StagedFile::sync() {
  if (::fsync(fd_.get()) != 0) fail_errno("sync", target_.string());
}

void StagedFile::commit() {
  if (overwrite_) keep_mode(target_, fd_.get());
  if (temporary_.empty()) {
    const std::string self = fmt::format("/proc/self/fd/{}", fd_.get());
    if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, target_.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      fd_ = FileDescriptor();
      return;
    }
    if (!overwrite_ || errno != EEXIST) fail_errno("create", target_.string());
    fs::path temporary = temporary_sibling(target_);
    staged_names().add(temporary);
    if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, temporary.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      fail_errno("create", temporary.string());
    }
    temporary_ = temporary;
  }
  if (!overwrite_) refuse_existing(target_, false);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_errno("create", target_.string());
  staged_names().forget(temporary_);
  temporary_.clear();
  fd_ = FileDescriptor();
  remove_left_over(target_);
}

StagedDirectory::StagedDirectory(const fs::path& target, bool overwrite, IsReplaced is_replaced)
    : target_(without_slash(target)), overwrite_(overwrite), is_replaced_(std::move(is_replaced)) {
  refuse_existing(target_, overwrite);
  std::error_code ignored;
  if (fs::is_symlink(fs::symlink_status(target_, ignored)) && fs::is_directory(target_, ignored)) {
    target_ = fs::canonical(target_);
  }
  refuse_foreign_folders(target_);
  temporary_ = temporary_sibling(target_);
}

void StagedDirectory::make() {
  staged_names().add(temporary_);
  if (::mkdir(temporary_.c_str(), 0777) != 0) fail_errno("create", temporary_.string());
  fd_ = FileDescriptor(::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd_.get() >= 0) lock_as_in_use(fd_.get());
}

StagedDirectory::StagedDirectory(StagedDirectory&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::move(other.fd_)),
      overwrite_(other.overwrite_),
      is_replaced_(std::move(other.is_replaced_)) {}

StagedDirectory::~StagedDirectory() {
  std::error_code ignored;
  if (temporary_.empty()) return;
  fs::remove_all(temporary_, ignored);
  staged_names().forget(temporary_);
}

void StagedDirectory::commit() {
  const bool replaces = overwrite_ && fs::exists(target_);
  if (replaces) {
    for (const fs::directory_entry& entry : fs::directory_iterator(target_)) {
      const fs::path name = entry.path().filename();
      if (!fs::exists(temporary_ / name) && !is_replaced_(name.string())) {
        carry_over(entry.path(), temporary_ / name);
      }
    }
  }
  if (replaces && fd_.get() >= 0) keep_mode(target_, fd_.get());
  // Exchanged in one step; what has the temporary name afterwards is the old folder.
  const unsigned flags = replaces ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(), flags) != 0) {
    fail_errno(replaces ? "replace" : "create", target_.string());
  }
  fd_ = FileDescriptor();
  std::error_code ignored;
  if (replaces) fs::remove_all(temporary_, ignored);
  staged_names().forget(temporary_);
  temporary_.clear();
  remove_left_over(target_);
}

void remove_staged_files() noexcept {
  StagedNames& staged = staged_names();
  // A thread that stands still in the middle of a change must not keep the program from ending.
  const std::unique_lock lock(staged.mutex, std::chrono::milliseconds(200));
  if (!lock.owns_lock()) return;
  std::error_code ignored;
  for (const fs::path& name : staged.names) fs::remove_all(name, ignored);
}

}  // namespace cbk
