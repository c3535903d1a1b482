#include "host/base/named_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace cbk {
namespace {

/// Relative, without "..", and of something below.
bool leads_down(const fs::path& name) {
  return name.is_relative() && name.has_filename() && name.filename() != "." &&
         std::ranges::none_of(name, [](const fs::path& part) { return part == ".."; });
}

struct Below {
  FileDescriptor file;
  int error = 0;
  bool is_link = false;  // not opened, as a part of the name is a symbolic link
};

/// Goes down part by part, so that no symbolic link is followed (but a last one, if that may be).
Below open_below(const fs::path& folder, const fs::path& name, NamedFiles::Link link) {
  FileDescriptor at(::open(folder.empty() ? "." : folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (at.get() < 0) return {{}, errno, false};
  for (auto part = name.begin(); part != name.end(); ++part) {
    const bool is_last = std::next(part) == name.end();
    const int how = is_last ? O_RDONLY | O_NONBLOCK : O_PATH | O_DIRECTORY;  // a FIFO must not hang
    const int follow = is_last && link == NamedFiles::Link::followed ? 0 : O_NOFOLLOW;
    FileDescriptor next(::openat(at.get(), part->c_str(), how | follow | O_CLOEXEC));
    if (next.get() < 0) {
      const int error = errno;
      struct stat info {};
      const bool is_link = follow != 0 &&
                           ::fstatat(at.get(), part->c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
                           S_ISLNK(info.st_mode);
      return {{}, error, is_link};
    }
    at = std::move(next);
  }
  return {std::move(at), 0, false};
}

bool are_same(int fd, int other) {
  struct stat info {};
  struct stat others {};
  return ::fstat(fd, &info) == 0 && ::fstat(other, &others) == 0 && info.st_dev == others.st_dev &&
         info.st_ino == others.st_ino;
}

/// The file at `path`, if it is the one that was opened.
std::shared_ptr<const MappedFile> mapped(const Below& opened, const fs::path& path,
                                         const std::shared_ptr<const MappedFile>& index) {
  if (opened.error == ENOENT || opened.error == ENOTDIR) return nullptr;
  if (opened.error != 0) fail_errno("open", path.string(), opened.error);
  auto file = MappedFile::open(path, index);
  if (!are_same(opened.file.get(), file->fd()))
    fail(Errc::io, "'{}' was replaced while it was opened", path.string());
  return file;
}

/// Where a path leads, as far as it exists.
fs::path real_path(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(fs::absolute(path), error);
  if (error) fail_errno("look at", path.string(), error.value());
  return real;
}

}  // namespace

NamedFiles::NamedFiles(fs::path folder, const std::vector<fs::path>& allowed,
                       std::shared_ptr<const MappedFile> index)
    : folder_(std::move(folder)), index_(std::move(index)) {
  for (const fs::path& each : allowed) {
    std::error_code error;
    allowed_.push_back(fs::canonical(each, error));
    if (error || !fs::is_directory(allowed_.back()))
      fail(Errc::usage, "'{}' is not a folder, but --allow-external names it", each.string());
  }
}

std::shared_ptr<const MappedFile> NamedFiles::find(const std::string& name, Link link) const {
  if (name.empty() || name.find('\0') != std::string::npos)
    fail(Errc::format, "{} is not the name of a file", quote(name));
  if (!leads_down(name)) return find_allowed(name, false);
  const Below opened = open_below(folder_, name, link);
  return opened.is_link ? find_allowed(name, true) : mapped(opened, folder_ / name, index_);
}

std::shared_ptr<const MappedFile> NamedFiles::find_allowed(const std::string& name, bool is_link) const {
  const fs::path path = folder_ / name;  // `name` alone if it is absolute
  for (const fs::path& allowed : allowed_) {
    const fs::path below = real_path(path).lexically_relative(allowed);
    if (leads_down(below)) return mapped(open_below(allowed, below, Link::refused), allowed / below, index_);
  }
  const fs::path place = (is_link ? real_path(path) : path.lexically_normal()).parent_path();
  const std::string advice = quote(place.empty() ? "." : place.string(), 400);
  fail(
      Errc::refused,
      "it names the file {}, which is {}; --allow-external {} (in Lua allow_external = {{ {} }}) allows that",
      quote(name, 400), is_link ? "a symbolic link" : "outside the folder of the checkpoint", advice, advice);
}

std::shared_ptr<const MappedFile> NamedFiles::open(const std::string& name, Link link) const {
  if (auto file = find(name, link)) return file;
  fail(Errc::io, "it names the file {}, which does not exist in {}; is the checkpoint's folder complete?",
       quote(name), quote(folder_.empty() ? "." : folder_.string()));
}

}  // namespace cbk
