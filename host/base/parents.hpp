// Missing folders in the paths of outputs.
#pragma once

#include <filesystem>
#include <vector>

namespace cbk {

namespace fs = std::filesystem;

/// Creates missing folders, and removes the empty ones in the end: if nothing was written, nothing is left.
/// Use from one thread.
class Parents {
 public:
  Parents() = default;
  Parents(Parents&&) = default;
  Parents& operator=(Parents&& other) noexcept {
    made_.swap(other.made_);
    return *this;
  }
  ~Parents();
  /// Creates the folders above `target`. Errors: `io`.
  void make(const fs::path& target);
  /// They stay, even if they are empty.
  void keep() { made_.clear(); }
  [[nodiscard]] const std::vector<fs::path>& made() const { return made_; }

 private:
  std::vector<fs::path> made_;  // the outer before the inner
};

}  // namespace cbk
