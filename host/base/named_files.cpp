#include "host/base/named_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace cbk {
namespace {

/// A relative name without "..", of something below.
bool leads_down(const fs::path& name) {
  return name.is_relative() && name.has_filename() && name.filename() != "." &&
         std::ranges::none_of(name, [](const fs::path& part) { return part == ".."; });
}

struct Below {
  FileDescriptor file;
  int error = 0;
  bool is_link = false;  // not opened, as a part of the name is a symbolic link
};

/// Descends part by part, so that no symbolic link is followed.
Below open_below(const fs::path& folder, const fs::path& name) {
  const char* top = folder.empty() ? "." : folder.c_str();
  FileDescriptor at(retried([&] { return ::open(top, O_PATH | O_DIRECTORY | O_CLOEXEC); }));
  if (at.get() < 0) return {{}, errno, false};
  for (auto part = name.begin(); part != name.end(); ++part) {
    const bool is_last = std::next(part) == name.end();
    const int how = is_last ? O_RDONLY | O_NONBLOCK : O_PATH | O_DIRECTORY;  // a FIFO must not hang
    FileDescriptor next(
        retried([&] { return ::openat(at.get(), part->c_str(), how | O_NOFOLLOW | O_CLOEXEC); }));
    if (next.get() < 0) {
      const int error = errno;
      struct stat info {};
      const bool is_link =
          ::fstatat(at.get(), part->c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
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

/// The target of a path, as far as it exists.
fs::path real_path(const fs::path& path) {
  std::error_code error;
  fs::path real = fs::weakly_canonical(fs::absolute(path), error);
  if (error) fail_errno("look at", path.string(), error.value());
  return real;
}

/// The blobs of a Hugging Face cache, `repository/blobs`, for a folder that is
/// `repository/snapshots/revision` or below; empty for other folders. If `blobs` is itself a link, the folder
/// does not count as part of a cache.
fs::path blobs_of_snapshot(const fs::path& folder) {
  std::error_code ignored;
  for (fs::path at = folder; at.has_relative_path(); at = at.parent_path()) {
    const fs::path parent = at.parent_path();
    if (parent.filename() != "snapshots") continue;
    fs::path blobs = parent.parent_path() / "blobs";
    return fs::is_directory(fs::symlink_status(blobs, ignored)) ? blobs : fs::path();
  }
  return {};
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
  if (!leads_down(name)) return find_allowed(name, false, link);
  const Below opened = open_below(folder_, name);
  return opened.is_link ? find_allowed(name, true, link) : mapped(opened, folder_ / name, index_);
}

std::shared_ptr<const MappedFile> NamedFiles::find_allowed(const std::string& name, bool is_link,
                                                           Link link) const {
  const fs::path path = folder_ / name;  // `name` alone if it is absolute
  const fs::path real = real_path(path);
  std::vector<fs::path> allowed = allowed_;
  if (is_link && link == Link::followed) {
    allowed.push_back(real_path(folder_.empty() ? "." : folder_));
    if (fs::path blobs = blobs_of_snapshot(allowed.back()); !blobs.empty())
      allowed.push_back(std::move(blobs));
  }
  for (const fs::path& each : allowed) {
    const fs::path below = real.lexically_relative(each);
    if (!leads_down(below)) continue;
    const Below opened = open_below(each, below);
    if (opened.is_link) return nullptr;  // after all links were followed: one that leads to nothing
    return mapped(opened, is_link ? path : each / below, index_);
  }
  const fs::path place = (is_link ? real : path.lexically_normal()).parent_path();
  const std::string folder = quote(place.empty() ? "." : place.string(), 400);
  const std::string problem =
      is_link && link == Link::followed
          ? fmt::format("the file {} is a symbolic link out of its folder", quote(name, 400))
          : fmt::format("it names the file {}, which is {}", quote(name, 400),
                        is_link ? "a symbolic link" : "outside the folder of the checkpoint");
  throw Error(Errc::external,
              {.problem = problem,
               .file = real.string(),
               .advice = fmt::format("--allow-external {} (in Lua allow_external = {{ {} }}) allows that",
                                     folder, folder)});
}

std::shared_ptr<const MappedFile> NamedFiles::open(const std::string& name, Link link) const {
  if (auto file = find(name, link)) return file;
  fail(Errc::io, "it names the file {}, which does not exist in {}; is the checkpoint's folder complete?",
       quote(name), quote(folder_.empty() ? "." : folder_.string()));
}

}  // namespace cbk
