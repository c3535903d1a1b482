// The folders that the paths of outputs name and that do not exist yet.
#pragma once

#include <filesystem>
#include <vector>

namespace cbk {

namespace fs = std::filesystem;

/// Makes missing folders, and in the end removes those of them that are empty: where nothing was written,
/// nothing is left. Use from one thread.
class Parents {
 public:
  Parents() = default;
  Parents(Parents&&) = default;
  Parents& operator=(Parents&& other) noexcept {
    made_.swap(other.made_);
    return *this;
  }
  ~Parents();
  /// Those above `target`. Errors: `io`.
  void make(const fs::path& target);
  [[nodiscard]] const std::vector<fs::path>& made() const { return made_; }

 private:
  std::vector<fs::path> made_;  // the outer before the inner
};

}  // namespace cbk
