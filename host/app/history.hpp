// The lines typed in earlier sessions, kept in a file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace cbk::app {

namespace fs = std::filesystem;

/// Entries from old to new, each once; one may have several lines. Every new entry is appended to the file at
/// once, so that a killed session loses nothing and parallel sessions lose nothing of each other. A file that
/// cannot be written is not an error.
class History {
 public:
  explicit History(fs::path file);

  [[nodiscard]] const std::vector<std::string>& entries() const { return entries_; }
  /// False if it is the newest entry already.
  bool add(const std::string& entry);

 private:
  void load();
  void save() const;

  fs::path file_;
  std::vector<std::string> entries_;
};

}  // namespace cbk::app
