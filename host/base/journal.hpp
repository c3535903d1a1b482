// A list of files that are about to get their names together. If a commit is killed in between, the next
// program that needs the files finishes it. No system call renames several files at once.
#pragma once

#include <string>
#include <vector>

#include "host/base/file.hpp"

namespace cbk {

/// On the disk while it lives, under a temporary name beside the first target; a killed program leaves it. A
/// signal would not remove it with the other temporaries: create it while these are held
/// (host/base/stale.hpp).
class Journal {
 public:
  /// A new file or folder, whole under a temporary name beside its target.
  struct Step {
    fs::path temporary;
    fs::path target;
    bool replaces = false;
  };
  /// `steps` in the order in which they get their names. Files in other folders than the first are not
  /// listed.
  /// `sync`: it is on the disk before this returns. Errors: `io`.
  Journal(const std::vector<Step>& steps, bool sync);
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal();

 private:
  void remove() noexcept;
  fs::path path_;
  FileDescriptor fd_;
};

/// Writes down a commit that is certain from then on: on the disk when this returns. Errors: `io`.
void note_commit(const fs::path& note, const std::vector<Journal::Step>& steps);

/// Completes the commit of a note, however far it is; once more does no harm. Errors: `changed` if another
/// program has changed its files since; `format`; `io`.
void complete_commit(const fs::path& note);

/// Finishes the commits in `folder` that were killed after some of their files had new names, and removes the
/// journals of those that had not begun. Files that another program has changed since are left alone. Returns
/// the targets that have their new files now. Steps that fail are skipped.
std::vector<fs::path> finish_killed_commits(const fs::path& folder) noexcept;

}  // namespace cbk
