#include "host/base/stale.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <random>

namespace cbk {
namespace {

constexpr size_t digits = 8;
constexpr std::string_view ending = ".tmp";

bool is_temporary_of(std::string_view name, std::string_view target) {
  if (name.size() != target.size() + 1 + digits + ending.size()) return false;
  if (!name.starts_with(target) || name[target.size()] != '.' || !name.ends_with(ending)) return false;
  const std::string_view number = name.substr(target.size() + 1, digits);
  return number.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_in_use(const fs::path& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  return fd.get() < 0 || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0;
}

}  // namespace

fs::path temporary_sibling(const fs::path& target) {
  std::random_device source;
  return target.parent_path() / fmt::format("{}.{:08x}{}", target.filename().string(), source(), ending);
}

void lock_as_in_use(int fd) noexcept {
  ::flock(fd, LOCK_EX | LOCK_NB);
}

void remove_left_over(const fs::path& target) noexcept {
  std::error_code ignored;
  std::vector<fs::path> left_over;
  const fs::path folder = target.parent_path().empty() ? fs::path(".") : target.parent_path();
  for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored)) {
    if (is_temporary_of(at->path().filename().string(), target.filename().string()))
      left_over.push_back(at->path());
  }
  std::erase_if(left_over, is_in_use);
  for (const fs::path& path : left_over) fs::remove_all(path, ignored);
}

}  // namespace cbk
