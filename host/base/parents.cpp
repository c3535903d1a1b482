#include "host/base/parents.hpp"

#include <cerrno>

#include <sys/stat.h>
#include <unistd.h>

#include "host/base/error.hpp"
#include "host/base/reversed.hpp"

namespace cbk {

Parents::~Parents() {
  for (const fs::path& path : Reversed(made_)) ::rmdir(path.c_str());
}

void Parents::make(const fs::path& target) {
  std::vector<fs::path> missing;
  std::error_code ignored;
  fs::path folder = (target.has_filename() ? target : target.parent_path()).parent_path();
  for (; !folder.empty() && !fs::exists(folder, ignored); folder = folder.parent_path())
    missing.push_back(folder);
  for (const fs::path& path : Reversed(missing)) {
    constexpr mode_t everything = 0777;  // less the umask
    if (::mkdir(path.c_str(), everything) == 0) {
      made_.push_back(path);
    } else if (errno != EEXIST) {
      fail_errno("create the folder", path.string());
    }
  }
}

}  // namespace cbk
