#include "host/base/staged.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/base/entries.hpp"
#include "host/base/replaced.hpp"
#include "host/base/stale.hpp"

namespace cbk {
namespace {

constexpr uint64_t sent_at_once = 64ULL << 20;

/// The /proc path of a file without a name.
std::string self_of(int fd) {
  return fmt::format("/proc/self/fd/{}", fd);
}

/// A file without a name vanishes even after kill -9. Returns none if the file system does not support it, or
/// if /proc is missing, without which the file could never get a name.
FileDescriptor open_nameless(const fs::path& folder) {
  FileDescriptor fd(retried([&] { return ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666); }));
  if (fd.get() >= 0) return ::access(self_of(fd.get()).c_str(), F_OK) == 0 ? std::move(fd) : FileDescriptor();
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) fail_errno("write into", folder.string());
  return {};
}

/// A file that another process made. Whoever can write into the folder could have put a link there.
FileDescriptor open_shared(const fs::path& name) {
  FileDescriptor fd = open_file("join", name, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
  struct stat found {};
  if (::fstat(fd.get(), &found) != 0) fail_errno("look at", name.string());
  if (!S_ISREG(found.st_mode) || found.st_nlink != 1)
    fail(Errc::io, "cannot join '{}': it is not a file of its own", name.string());
  return fd;
}

/// The mode of a new file. While it is determined, the group and others have no rights.
mode_t usual_mode() {
  static const mode_t mask = [] {
    const mode_t old = ::umask(077);
    ::umask(old);
    return old;
  }();
  return 0666 & ~mask;
}

}  // namespace

void Staged::take_name() {
  if (!role_.is_kept) remember_temporary(name_);
  has_name_ = true;
}

void Staged::release() {
  if (has_name_) forget_temporary(name_);
  has_name_ = false;
}

StagedFile::StagedFile(fs::path target, fs::path name, const fs::path& folder, Role role)
    : Staged(std::move(target), std::move(name), role),
      fd_(role.kind == Role::Kind::alone ? open_nameless(folder) : FileDescriptor()),
      is_ignoring_(joins()) {
  is_private_ = fd_.get() < 0;
  if (is_private_) {
    fd_ = joins() ? open_shared(this->name())
                  : open_file("create", this->name(), O_RDWR | O_CREAT | O_EXCL, 0600);
    take_name();
  }
  if (!joins()) lock_as_in_use(fd_);
  if (role.kind != Role::Kind::alone) layout_.emplace();
  is_remote_ = is_remote(fd_);
}

void StagedFile::begin_filling() {
  is_ignoring_ = false;
  layout_.reset();
}

void StagedFile::add_layout(Sha256& digest) {
  digest.add(as_bytes(target().native()));
  if (layout_) digest.add(layout_->digest());
  layout_.reset();
}

StagedFile::~StagedFile() {
  if (has_name() && !role().is_kept) ::unlink(name().c_str());
  release();
}

void StagedFile::reserve(uint64_t size) {
  if (layout_) layout_->add(as_bytes(fmt::format("{} bytes\n", size)));
  reserved_ = size;
  if (size == 0 || is_ignoring_) return;
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(size));
  if (error != 0) fail_errno(fmt::format("reserve {} for", format_size(size)), target().string(), error);
}

void StagedFile::write(uint64_t offset, ByteView bytes) {
  const std::lock_guard turn(turn_);
  if (layout_) {
    layout_->add(as_bytes(fmt::format("{} at {}\n", bytes.size(), offset)));
    layout_->add(bytes);
  }
  if (is_ignoring_) return;
  write_at(fd_, offset, bytes, target());
  if (!is_remote_ || (unsent_ += bytes.size()) < sent_at_once) return;
  unsent_ = 0;
  // A wish: what goes wrong is found by the sync of `prepare`.
  (void)::sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
}

void StagedFile::prepare(bool sync) {
  struct stat found {};
  if (::fstat(fd_.get(), &found) != 0) fail_errno("look at", target().string());
  if (static_cast<uint64_t>(found.st_size) < reserved_)
    fail(Errc::changed, "'{}' has {} of {} bytes: another program cut it while it was written",
         target().string(), found.st_size, reserved_);
  std::error_code ignored;
  if (fs::exists(target(), ignored)) {
    take_over_access(target(), fd_);
  } else if (is_private_ && ::fchmod(fd_.get(), usual_mode()) != 0) {
    fail_errno("set the mode of", target().string());
  }
  if (sync || is_remote_) sync_to_disk(fd_, target());
  if (has_name()) return;
  take_name();
  if (::linkat(AT_FDCWD, self_of(fd_.get()).c_str(), AT_FDCWD, name().c_str(), AT_SYMLINK_FOLLOW) != 0)
    fail_errno("create", name().string());
}

StagedFolder::StagedFolder(fs::path target, fs::path name, IsReplaced is_replaced,
                           const std::set<std::string>& inner, Role role)
    : Staged(std::move(target), std::move(name), role), is_replaced_(std::move(is_replaced)) {
  for (const std::string& each : inner) inner_[each];
  // Files that need names are in it. It is also better to know before the work whether it can be created.
  if (role.kind != Role::Kind::alone || open_nameless(folder_of(this->target())).get() < 0) make();
}

StagedFolder::~StagedFolder() {
  files_.clear();
  std::error_code ignored;
  if (has_name() && !role().is_kept) fs::remove_all(name(), ignored);
  release();
}

StagedFile& StagedFolder::file(const std::string& file_name) {
  return files_.emplace_back(target() / file_name, name() / file_name,
                             has_name() ? name() : folder_of(target()), role());
}

void StagedFolder::leave() {
  for (StagedFile& each : files_) each.release();
  release();
}

void StagedFolder::add_layout(Sha256& digest) {
  for (StagedFile& each : files_) each.add_layout(digest);
}

void StagedFolder::begin_filling() {
  for (StagedFile& each : files_) each.begin_filling();
}

FileDescriptor StagedFolder::made(const fs::path& folder) const {
  if (!joins() && ::mkdir(folder.c_str(), 0777) != 0) fail_errno("create", folder.string());
  return open_file("open", folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

void StagedFolder::make() {
  take_name();
  fd_ = made(name());
  if (!joins()) lock_as_in_use(fd_);
  for (auto& [folder, fd] : inner_) fd = made(name() / folder);
}

/// The same file under a second name, or a copy if the file system has no hard links.
void StagedFolder::carry_over(const fs::path& old, const fs::path& made, bool sync) const {
  std::error_code error;
  const bool is_inner = made != name();
  for (const fs::directory_entry& entry : entries_of(old)) {
    const fs::path to = made / entry.path().filename();
    const bool is_folder = entry.is_directory(error) && !entry.is_symlink(error);
    if (is_folder && !is_inner && inner_.contains(to.filename().string())) continue;
    if (is_folder) fail_errno("keep", entry.path().string(), EISDIR);
    if (fs::exists(fs::symlink_status(to, error)) || (!is_inner && is_replaced_(to.filename().string())))
      continue;
    if (::linkat(AT_FDCWD, entry.path().c_str(), AT_FDCWD, to.c_str(), 0) == 0) continue;
    fs::copy(entry.path(), to, fs::copy_options::copy_symlinks, error);
    if (error) fail_errno("keep", entry.path().string(), error.value());
    if (sync && entry.is_regular_file()) sync_to_disk(open_file("open", to, O_RDONLY), to);
  }
}

/// What an old folder has and the new one lacks, and its rights.
void StagedFolder::finish(const fs::path& old, const fs::path& made, const FileDescriptor& fd,
                          bool sync) const {
  std::error_code ignored;
  if (fs::is_directory(fs::symlink_status(old, ignored))) {
    carry_over(old, made, sync);
    take_over_access(old, fd);
  }
  if (sync) sync_to_disk(fd, old);
}

void StagedFolder::prepare(bool sync) {
  if (!has_name()) make();
  for (StagedFile& file : files_) {
    file.prepare(sync);
    file.release();  // it goes with the folder
  }
  for (const auto& [folder, fd] : inner_) finish(target() / folder, name() / folder, fd, sync);
  finish(target(), name(), fd_, sync);
}

}  // namespace cbk
