// The folders that the path of an output names and that do not exist yet.
#pragma once

#include <filesystem>
#include <vector>

namespace cbk {

namespace fs = std::filesystem;

/// Makes the missing folders above `target`, and removes them again unless it was kept: where nothing is
/// written, nothing is left. Use from one thread.
class Parents {
 public:
  /// Errors: `io`.
  explicit Parents(const fs::path& target);
  Parents(const Parents&) = delete;
  Parents& operator=(const Parents&) = delete;
  ~Parents();
  void keep() { made_.clear(); }

 private:
  void remove_made() noexcept;
  std::vector<fs::path> made_;  // the outermost first
};

}  // namespace cbk
