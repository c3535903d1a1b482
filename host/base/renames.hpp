// New names for files and folders, which can be taken back.
#pragma once

#include <vector>

#include "host/base/file.hpp"

namespace cbk {

class Renames {
 public:
  /// `from` becomes `to`, where nothing may be (`exists`).
  void move(const fs::path& from, const fs::path& to);
  /// `path` gets a temporary name, which is the result.
  fs::path set_aside(const fs::path& path);
  /// `from` becomes `to`, and what was there gets the name `from`, in one step. Where the file system cannot
  /// do that, in several: a file `to` always exists, but a folder has a temporary name for a moment.
  void exchange(const fs::path& from, const fs::path& to);
  /// `from` takes the place of the file `to` in one step, which cannot be taken back.
  void replace(const fs::path& from, const fs::path& to);
  /// Takes back everything, the last one first. What cannot be taken back is the result: "'a' is now 'b'".
  std::vector<std::string> undo();

 private:
  struct Step {
    fs::path from;
    fs::path to;
    bool is_exchange = false;
  };
  /// `from` becomes `to`, without an exchange. The result: the temporary name of what was there.
  fs::path step_over(const fs::path& from, const fs::path& to);
  std::vector<Step> steps_;
};

}  // namespace cbk
