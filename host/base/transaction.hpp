// Files and folders that appear together: all of them, or none.
//
// Everything that may fail is done before the first name changes. A single file or folder then replaces its
// target in one step. No system call replaces several at once. So an error undoes everything. A program that
// is killed in between never leaves an old file beside a new one: it leaves one of them, old or new, whole
// and alone, and a list of all of them, with which the next program finishes the commit
// (host/base/journal.hpp):
// 1. Early files that replace nothing appear; nothing refers to them yet.
// 2. All replaced files but the first are set aside.
// 3. The first one is exchanged with the new one.
// 4. The others appear in the order in which they were added.
#pragma once

#include <memory>
#include <vector>

#include "host/base/journal.hpp"
#include "host/base/parents.hpp"
#include "host/base/staged.hpp"

namespace cbk {

/// Several processes that fill the same files. Their temporary names have the same `tag`: eight hexadecimal
/// digits.
struct Sharing {
  std::string tag;
  Role role;
  fs::path note = {};  // of the commit, for files that are kept: see note_commit
};

/// Belongs to one owner. Without a commit everything is discarded.
class Transaction {
 public:
  /// Call this before the first file or folder is added.
  void share(Sharing sharing) { sharing_ = std::move(sharing); }
  /// The digest of what was laid out: files with their sizes, headers and small files. Once.
  [[nodiscard]] std::string layout_digest();
  /// All files are laid out: joining processes write from now on.
  void begin_filling();
  /// Gives up everything without removing it: other processes go on with it.
  void leave();
  /// Removes what is kept: it could not be laid out.
  void discard() noexcept;

  /// A new file or folder, kept as long as the transaction. Missing folders above it are created. Errors:
  /// those of `replaceable_file` and `replaceable_folder`; `usage` for a target that is given twice.
  StagedFile& file(const fs::path& target, bool overwrite);
  /// A file that may appear before the others, because old files do not refer to it.
  StagedFile& early_file(const fs::path& target, bool overwrite);
  StagedFolder& folder(const fs::path& target, bool overwrite, StagedFolder::IsReplaced is_replaced,
                       const std::set<std::string>& inner = {});
  /// Removes an old file once everything is written.
  void remove(fs::path path) { removed_.push_back(std::move(path)); }
  /// Files that must not have changed at the commit since they were opened.
  void expect_unchanged(const SourceFiles& files) { sources_.insert(files.begin(), files.end()); }
  /// In a team, every rank calls it, and the first one does it.
  /// `sync`: everything is on the disk before it gets its name, and the names are before this returns.
  /// Errors:
  /// `io`, `no_space`, `exists`, `interrupted`; in that case nothing has changed.
  void commit(bool sync);
  /// The same for what this rank alone writes.
  void commit_here(bool sync);

 private:
  struct Member {
    std::unique_ptr<Staged> staged;
    bool overwrite = false;
    bool is_early = false;
    [[nodiscard]] bool replaces() const;
  };
  StagedFile& add_file(const fs::path& target, bool overwrite, bool is_early);
  void add(Member member);
  void place(bool sync);
  void place_all(class Renames& renames, bool sync);
  void note() const;
  [[nodiscard]] std::vector<Journal::Step> steps() const;
  void clean_up();
  void sync_folders() const;
  [[nodiscard]] fs::path name_for(const fs::path& target) const;
  void make_room(const fs::path& name) const;

  Sharing sharing_;
  Parents parents_;  // destroyed after what is in them
  std::vector<Member> members_;
  std::vector<fs::path> old_;  // what stepped aside
  std::vector<fs::path> removed_;
  SourceFiles sources_;
};

/// Writes `content` so that `path` has the old content or the new one, never a part. Refuses an existing path
/// unless `overwrite`.
void write_file(const fs::path& path, std::string_view content, bool overwrite);

}  // namespace cbk
