// Files and folders that appear together: all of them, or none.
//
// Everything that may fail is done before the first name changes. A single file or folder then takes its
// target's place in one step. Of several, in the order in which they were added, the ones that replace
// something step aside before the first one that does is replaced, and the new ones follow in order. So an
// error takes everything back, and a program killed in between leaves the first one, old or new, without the
// others: never an old one beside a new one.
#pragma once

#include <memory>
#include <vector>

#include "host/base/staged.hpp"

namespace cbk {

/// Belongs to one owner. What is not committed is given up.
class Transaction {
 public:
  /// A new file or folder, kept until the transaction goes. Errors: as `replaceable_file` and
  /// `replaceable_folder`; `usage` for a target that is there twice.
  StagedFile& file(const fs::path& target, bool overwrite);
  StagedFolder& folder(const fs::path& target, bool overwrite, StagedFolder::IsReplaced is_replaced);
  /// An old file that goes when everything is there.
  void remove(fs::path path) { removed_.push_back(std::move(path)); }
  /// Files that must be at the commit what they were when they were opened.
  void expect_unchanged(const SourceFiles& files) { sources_.insert(files.begin(), files.end()); }
  /// `sync`: everything is on the disk before it has its name, and the names are before this returns. Errors:
  /// `io`, `no_space`, `exists`, `interrupted`; nothing has changed then.
  void commit(bool sync);

 private:
  struct Member {
    std::unique_ptr<Staged> staged;
    bool overwrite = false;
    [[nodiscard]] bool replaces() const;
  };
  void add(std::unique_ptr<Staged> staged, bool overwrite);
  void place();
  void place_all(class Renames& renames);
  void clean_up();
  void sync_folders() const;

  std::vector<Member> members_;
  std::vector<fs::path> old_;  // what stepped aside
  std::vector<fs::path> removed_;
  SourceFiles sources_;
};

/// Writes `content` so that `path` has the old content or the new one, never a part. Refuses an existing path
/// unless `overwrite`.
void write_file(const fs::path& path, std::string_view content, bool overwrite);

}  // namespace cbk
