// What was typed before, kept in a file for the next session.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace cbk::app {

namespace fs = std::filesystem;

/// Entries from old to new, each once; one may have several lines. Every new entry is appended to the file at
/// once, so that a killed session loses nothing and parallel sessions lose nothing of each other. A file that
/// cannot be written is no error.
class History {
 public:
  explicit History(fs::path file);

  [[nodiscard]] const std::vector<std::string>& entries() const { return entries_; }
  /// False when it is the newest entry already.
  bool add(const std::string& entry);

 private:
  void load();
  void save() const;

  fs::path file_;
  std::vector<std::string> entries_;
};

}  // namespace cbk::app
