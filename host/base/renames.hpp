// Renames of files and folders that can be undone.
#pragma once

#include <vector>

#include "host/base/file.hpp"

namespace cbk {

class Renames {
 public:
  /// `from` becomes `to`, which must not exist (`exists`).
  void move(const fs::path& from, const fs::path& to);
  /// `path` gets a temporary name, which is returned.
  fs::path set_aside(const fs::path& path);
  /// `from` becomes `to`, and the old `to` gets the name `from`, in one step. If the file system cannot do
  /// that, it takes several steps: a file `to` always exists, but a folder has a temporary name for a moment.
  void exchange(const fs::path& from, const fs::path& to);
  /// `from` replaces the file `to` in one step, which cannot be undone.
  void replace(const fs::path& from, const fs::path& to);
  /// Undoes everything, the last rename first. Returns those that cannot be undone: "'a' is now 'b'".
  std::vector<std::string> undo();

 private:
  struct Step {
    fs::path from;
    fs::path to;
    bool is_exchange = false;
  };
  /// `from` becomes `to`, without an exchange. Returns the temporary name of the old `to`.
  fs::path step_over(const fs::path& from, const fs::path& to);
  std::vector<Step> steps_;
};

}  // namespace cbk
