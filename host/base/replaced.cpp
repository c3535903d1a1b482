#include "host/base/replaced.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "host/base/entries.hpp"
namespace cbk {
namespace {

/// A mount point, or a file that chattr(1) protects.
void refuse_pinned(const fs::path& path) {
  struct statx info {};
  if (::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_TYPE, &info) != 0) return;
  const uint64_t set = info.stx_attributes & info.stx_attributes_mask;
  const char* why = (set & STATX_ATTR_MOUNT_ROOT) != 0                        ? "a mount point"
                    : (set & (STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND)) != 0 ? "protected (see lsattr)"
                                                                              : nullptr;
  if (why != nullptr)
    fail(Errc::io, "cannot replace '{}': it is {}; choose another name", path.string(), why);
}

/// In a folder like /tmp, only the owner of a file may replace it.
void refuse_sticky(const fs::path& path) {
  struct stat folder {};
  struct stat file {};
  if (::stat(folder_of(path).c_str(), &folder) != 0 || ::lstat(path.c_str(), &file) != 0) return;
  const uid_t us = ::geteuid();
  if ((folder.st_mode & S_ISVTX) == 0 || us == 0 || us == folder.st_uid || us == file.st_uid) return;
  fail(Errc::io, "cannot replace '{}': it belongs to another user; choose another name", path.string());
}

/// The target itself, or the target of a symbolic link.
fs::path behind_link(const fs::path& target) {
  std::error_code ignored;
  if (!fs::exists(target, ignored)) {
    fail(Errc::io,
         "cannot replace '{}': it is a symbolic link to '{}', which does not exist; remove the link",
         target.string(), fs::read_symlink(target, ignored).string());
  }
  return fs::canonical(target);
}

bool is_link(const fs::path& path) {
  std::error_code ignored;
  return fs::is_symlink(fs::symlink_status(path, ignored));
}

/// A link may lead only below its folder, which the user named: somebody else may have made the link.
void refuse_outside(const fs::path& target, const fs::path& file) {
  const fs::path below = file.lexically_relative(fs::canonical(folder_of(target)));
  if (!below.empty() && *below.begin() != "..") return;
  fail(
      Errc::external,
      "cannot replace '{}': it is a symbolic link to '{}', outside its folder; name that file as the output, "
      "or remove the link",
      target.string(), file.string());
}

void refuse_foreign_folders(const fs::path& folder, const std::set<std::string>& inner) {
  std::vector<std::string> foreign;
  for (const fs::directory_entry& entry : entries_of(folder)) {
    if (entry.is_symlink() || entry.is_regular_file()) continue;
    std::string name = entry.path().filename().string();
    if (!entry.is_directory() || !inner.contains(name)) {
      foreign.push_back(std::move(name));
      continue;
    }
    refuse_pinned(entry.path());
    refuse_foreign_folders(entry.path(), {});
  }
  if (foreign.empty()) return;
  fail(Errc::io, "cannot replace the folder '{}': it holds more than files: {}", folder.string(),
       listed(foreign, 5));
}

/// Copies the old file's access control list, if any, in place of the folder's default for new files.
void take_over_list(const fs::path& replaced, const FileDescriptor& fd) {
  constexpr const char* name = "system.posix_acl_access";
  const ssize_t size = ::getxattr(replaced.c_str(), name, nullptr, 0);
  if (size <= 0) return void(::fremovexattr(fd.get(), name));
  std::vector<char> list(static_cast<size_t>(size));
  if (::getxattr(replaced.c_str(), name, list.data(), list.size()) != size) return;
  (void)::fsetxattr(fd.get(), name, list.data(), list.size(), 0);
}

}  // namespace

void refuse_existing(const fs::path& target, bool overwrite) {
  std::error_code ignored;
  if (!overwrite && fs::exists(fs::symlink_status(target, ignored))) {
    fail(Errc::exists, "'{}' exists already", target.string());
  }
}

fs::path replaceable_file(const fs::path& target, bool overwrite) {
  refuse_existing(target, overwrite);
  std::error_code ignored;
  const fs::file_status status = fs::status(target, ignored);
  if (fs::is_directory(status)) fail_errno("write", target.string(), EISDIR);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail(Errc::io, "cannot replace '{}': not a regular file", target.string());
  }
  fs::path file = target;
  if (is_link(target)) {
    file = behind_link(target);
    refuse_outside(target, file);
  }
  refuse_pinned(file);
  refuse_sticky(file);
  return file;
}

fs::path replaceable_folder(const fs::path& target, bool overwrite, const std::set<std::string>& inner) {
  refuse_existing(target, overwrite);
  fs::path folder = target;
  if (is_link(target)) {
    folder = behind_link(target);
    refuse_outside(target, folder);
  }
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) return folder;
  if (!fs::is_directory(folder)) fail(Errc::io, "cannot replace '{}': not a folder", folder.string());
  refuse_pinned(folder);
  refuse_sticky(folder);
  refuse_foreign_folders(folder, inner);
  return folder;
}

void take_over_access(const fs::path& replaced, const FileDescriptor& fd) {
  struct stat mine {};
  struct stat old {};
  if (::fstat(fd.get(), &mine) != 0 || ::stat(replaced.c_str(), &old) != 0) return;
  const bool has_group = mine.st_gid == old.st_gid || ::fchown(fd.get(), -1, old.st_gid) == 0;
  const bool has_owner = mine.st_uid == old.st_uid || ::fchown(fd.get(), old.st_uid, -1) == 0;
  mode_t mode = old.st_mode & 07777;
  // The rights of the old group must not pass to the new group.
  if (!has_group) mode = (mode & ~static_cast<mode_t>(S_ISGID | 070)) | ((mode & 07) << 3);
  if (!has_owner) mode &= ~static_cast<mode_t>(S_ISUID);
  take_over_list(replaced, fd);
  (void)!::fchmod(fd.get(), mode);
}

}  // namespace cbk
