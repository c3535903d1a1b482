#include "host/base/parents.hpp"

#include <algorithm>
#include <cerrno>

#include <sys/stat.h>
#include <unistd.h>

#include "host/base/error.hpp"

namespace cbk {

Parents::Parents(const fs::path& target) {
  std::vector<fs::path> missing;
  std::error_code ignored;
  fs::path folder = (target.has_filename() ? target : target.parent_path()).parent_path();
  for (; !folder.empty() && !fs::exists(folder, ignored); folder = folder.parent_path())
    missing.push_back(folder);
  std::reverse(missing.begin(), missing.end());
  for (const fs::path& path : missing) {
    constexpr mode_t everything = 0777;  // less the umask
    const bool is_new = ::mkdir(path.c_str(), everything) == 0;
    const int error = errno;
    if (!is_new && error != EEXIST) {
      remove_made();
      fail_errno("create the folder", path.string(), error);
    }
    if (is_new) made_.push_back(path);
  }
}

Parents::~Parents() {
  remove_made();
}

/// Only empty ones go.
void Parents::remove_made() noexcept {
  for (auto it = made_.rbegin(); it != made_.rend(); ++it) ::rmdir(it->c_str());
}

}  // namespace cbk
