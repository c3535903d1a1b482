// A job: a folder with the plan of one commit and the journals of what is written of it, so that several
// programs write it, one after the other or at the same time, on any machine that sees the files. A killed
// one costs its last seconds.
//
//   plan.json              version, command, sources, digest; there once the output is laid out
//   lock                   locked by who works on it; has the tag of the temporary names of the output
//   commit                 the output is complete, and gets its names (host/base/journal.hpp)
//   plan.txt               outputs, items and expressions, for people; the digest is of this
//   part-3-of-16.TAG.done  the journal of a process (host/streaming/ledger.hpp)
//   part-3-of-16.TAG.pieces  its packed pieces, if the format has some
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/base/transaction.hpp"
#include "host/streaming/blocks.hpp"
#include "host/streaming/ledger.hpp"

namespace cbk {

/// What a program does in a job.
struct JobOptions {
  enum class Action {
    run,     // writes everything that is not written yet, and commits
    plan,    // lays the output out
    work,    // writes a share
    finish,  // commits what others wrote
    replay,  // writes nothing, and compares with `provenance` (see provenance.hpp)
  };
  fs::path folder;
  Action action = Action::run;
  Share share;                       // of `work`
  std::vector<std::string> command;  // with which any program makes the same plan again
  std::string version;               // of cbk
  fs::path provenance, output;       // of a replay: the file, and the path that the output had

  [[nodiscard]] bool commits() const { return action == Action::run || action == Action::finish; }
};

/// The text of a plan, from which its digest is made.
struct PlanText {
  std::string text;
  std::string digest;      // SHA-256, of text, version and command
  uint64_t blocks_of = 0;  // bytes
  uint64_t bytes = 0, items = 0;
};

/// Outputs, items with their costs, expressions and sources. `facts`: what else is known of each output.
/// `block_bytes`: see Assignment.
PlanText plan_text(const std::vector<Writer*>& writers, const std::vector<std::string>& facts,
                   const SourceFiles& sources, uint64_t block_bytes, const JobOptions* job);

/// The journals in the folder of a job, sorted. Errors: `io`.
std::vector<fs::path> journals_in(const fs::path& folder);

/// The folder of a job, locked while it lives: several workers may be in it, or one that commits.
class JobFolder {
 public:
  /// Enters the folder: an existing job, if it has this plan, or a new one. Errors: `exists` if others are at
  /// work in it, or if it has other files; `changed` for another plan, in words.
  JobFolder(const JobOptions& options, const PlanText& plan);
  /// The same for a process of a team whose first one has entered it.
  JobFolder(const fs::path& folder, std::string tag);
  /// Removes what was not begun.
  ~JobFolder();
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  /// Of the temporary names of the output.
  [[nodiscard]] const std::string& tag() const { return tag_; }
  /// Whether the output is laid out.
  [[nodiscard]] bool is_begun() const { return is_begun_; }
  /// Whether it is committed: by a program that was killed then, or before it had written its other outputs.
  [[nodiscard]] bool is_done() const { return is_done_; }
  /// Where the commit is noted.
  [[nodiscard]] fs::path note() const;
  /// The output is laid out, with the digest `layout`: others may come. Errors: `io`.
  void begin(const JobOptions& options, const PlanText& plan, const SourceFiles& sources,
             const std::string& layout);
  /// Fails (`changed`) if this process has laid out something else than the one that began.
  void check_layout(const std::string& layout) const;

  [[nodiscard]] std::unique_ptr<Ledger> new_ledger(Share share) const;
  /// Of all processes so far; `process` is an index into `pieces`.
  [[nodiscard]] FinishedBlocks finished();
  [[nodiscard]] const std::vector<fs::path>& pieces() const { return pieces_; }
  /// The number of parts of the cut that most journals have. Call `finished` first.
  [[nodiscard]] int usual_parts() const { return usual_parts_; }

  /// The output is committed, and its pieces are not needed any more.
  void end() noexcept;
  /// Whether a program was killed while it removed the folder: the note of the commit is there without the
  /// plan. It is removed now. Errors: as of complete_commit.
  static bool complete_removed(const fs::path& folder);
  /// Removes the folder, and all files in it that are of jobs.
  static void remove(const fs::path& folder) noexcept;

 private:
  void lock(bool is_alone);
  void read_tag();
  void complete(const JobOptions& options, bool is_same);
  [[nodiscard]] std::string advice() const;
  [[noreturn]] void refuse_other_plan(const std::string& how) const;
  fs::path folder_;
  std::string layout_;
  std::string tag_;
  bool is_begun_ = false;
  bool is_done_ = false;
  FileDescriptor lock_;
  std::vector<fs::path> pieces_;
  int usual_parts_ = 1;
};

}  // namespace cbk
