#include "host/base/inside.hpp"

#include <algorithm>

#include "host/base/error.hpp"

namespace cbk {

fs::path inside(const fs::path& folder, const std::string& name) {
  const std::string separators("/\0", 2);
  if (name.empty() || name == "." || name == ".." || name.find_first_of(separators) != std::string::npos) {
    fail(Errc::value, "cannot write {} into '{}': expected the name of a file or folder in it", quote(name),
         folder.string());
  }
  fs::path path = folder / name;
  std::error_code ignored;
  if (!fs::is_symlink(fs::symlink_status(path, ignored))) return path;
  const fs::path top = fs::weakly_canonical(folder.empty() ? fs::path(".") : folder, ignored);
  const fs::path target = fs::weakly_canonical(path, ignored);
  const auto [end, rest] = std::mismatch(top.begin(), top.end(), target.begin(), target.end());
  if (end != top.end() || rest == target.end()) {
    fail(Errc::io, "cannot write '{}': it is a symbolic link out of its folder, to '{}'; remove the link",
         path.string(), fs::read_symlink(path, ignored).string());
  }
  return path;
}

}  // namespace cbk
