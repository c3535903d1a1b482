#include "host/base/renames.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "host/base/reversed.hpp"
#include "host/base/stale.hpp"

namespace cbk {
namespace {

/// FUSE, NFS and others do not support flags.
bool is_unknown_flag(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

/// Returns 0 or the error.
int rename_with(const fs::path& from, const fs::path& to, unsigned flags) {
  const auto call = [&] { return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags); };
  return retried(call) == 0 ? 0 : errno;
}

/// To a name that does not exist. Returns 0 or the error.
int rename_new(const fs::path& from, const fs::path& to) {
  const int error = rename_with(from, to, RENAME_NOREPLACE);
  if (!is_unknown_flag(error)) return error;
  std::error_code ignored;
  return fs::exists(fs::symlink_status(to, ignored)) ? EEXIST : rename_with(from, to, 0);
}

}  // namespace

void Renames::move(const fs::path& from, const fs::path& to) {
  if (const int error = rename_new(from, to); error != 0) fail_errno("create", to.string(), error);
  steps_.push_back({from, to});
}

fs::path Renames::set_aside(const fs::path& path) {
  fs::path aside = old_sibling(path);
  if (const int error = rename_new(path, aside); error != 0) fail_errno("replace", path.string(), error);
  steps_.push_back({path, aside});
  return aside;
}

void Renames::exchange(const fs::path& from, const fs::path& to) {
  const int error = rename_with(from, to, RENAME_EXCHANGE);
  if (error == 0) return steps_.push_back({from, to, true});
  if (!is_unknown_flag(error)) fail_errno("replace", to.string(), error);
  const fs::path aside = step_over(from, to);
  move(aside, from);
}

fs::path Renames::step_over(const fs::path& from, const fs::path& to) {
  fs::path aside = old_sibling(to);
  if (fs::is_directory(to) || ::linkat(AT_FDCWD, to.c_str(), AT_FDCWD, aside.c_str(), 0) != 0) {
    aside = set_aside(to);
    move(from, to);
    return aside;
  }
  if (const int error = rename_with(from, to, 0); error != 0) {
    ::unlink(aside.c_str());
    fail_errno("replace", to.string(), error);
  }
  steps_.push_back({to, aside});
  return aside;
}

void Renames::replace(const fs::path& from, const fs::path& to) {
  if (const int error = rename_with(from, to, 0); error != 0) fail_errno("replace", to.string(), error);
}

std::vector<std::string> Renames::undo() {
  std::vector<std::string> stuck;
  for (const Step& step : Reversed(steps_)) {
    if (rename_with(step.to, step.from, step.is_exchange ? RENAME_EXCHANGE : 0) == 0) continue;
    stuck.push_back(fmt::format("'{}' is now '{}'", step.from.string(), step.to.string()));
  }
  steps_.clear();
  return stuck;
}

}  // namespace cbk
