// Processes that work together: the ranks that `mpirun` or `srun` started. All of them run the same program
// and plan the same work; rank 0 alone talks to the user and gives files their names. One thread owns the
// connection, so that the others may be busy: it also notices ranks that have failed or do not answer.
//
// What every rank must reach in the same order are the collective calls: `from_first`, `to_first`,
// `all_to_all`, `exchange`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cbk {

class Team {
 public:
  /// This program's team: itself alone, unless `join` was called.
  static Team& world();
  /// Connects to the other ranks, if a launcher started this program as one of several. Call it before all
  /// other threads. Errors: `unsupported` if the module for the launcher is missing; `usage` if rank 0 has
  /// another version.
  static void join(const std::string& version);

  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  virtual ~Team() = default;

  [[nodiscard]] virtual int rank() const { return 0; }
  [[nodiscard]] virtual int size() const { return 1; }
  [[nodiscard]] bool is_first() const { return rank() == 0; }
  [[nodiscard]] bool is_alone() const { return size() == 1; }

  /// Collective: the bytes of rank 0, on all ranks. Errors: `interrupted` if another rank has failed.
  virtual std::string from_first(std::string mine) { return mine; }
  /// Collective: the bytes of all ranks in their order, on rank 0; nothing on the others. Errors: as above.
  virtual std::vector<std::string> to_first(std::string mine) { return {std::move(mine)}; }

  /// Collective: sends `mine[r]` to rank r, for each; returns what each rank sent to this one. Errors: as
  /// above.
  virtual std::vector<std::string> all_to_all(std::vector<std::string> mine) { return mine; }
  /// Collective: the bytes of all ranks in their order, on all ranks. Errors: as above.
  std::vector<std::string> exchange(const std::string& mine);

  /// Progress of this rank, and of all others together, in bytes.
  virtual void set_done(uint64_t /*bytes*/) {}
  [[nodiscard]] virtual uint64_t done_elsewhere() const { return 0; }

  /// Reports to the others that this rank has failed with this message. Returns false if the team has failed
  /// before, or if rank 0 will show the message: then it must not be shown here.
  virtual bool report_failure(const std::string& /*message*/) { return true; }
  /// The message of the rank that failed first, if this rank stopped for that.
  [[nodiscard]] virtual std::string failure() const { return {}; }
  /// Whether another rank's failure has stopped this one, as Ctrl-C would.
  [[nodiscard]] virtual bool is_stopped() const { return false; }
  /// After all work: waits until all other ranks are here, or one has failed.
  virtual void await_end() {}
  /// The last call, after `await_end`. Launchers may end this process as soon as another one has left.
  virtual void leave() {}

 protected:
  Team() = default;
};

}  // namespace cbk
