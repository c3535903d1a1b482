// Writes what writers have planned: streams their items through a bounded amount of memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/formats/writer.hpp"
#include "host/streaming/job.hpp"
#include "host/streaming/lost.hpp"
#include "host/streaming/provenance.hpp"

namespace cbk {

struct StreamingOptions {
  int threads = 0;                        // 0: as many as the machine has, at most 4
  uint64_t memory = 96ULL << 20;          // bound of the anonymous memory for blocks in flight
  bool sync = false;                      // everything is on the disk when `write_all` returns
  bool allow_overflow = false;            // write values that overflow or change, too
  std::optional<uint64_t> max_expansion;  // see host/streaming/expansion.hpp
  std::optional<ProvenanceOptions> provenance;
  std::vector<fs::path> targets;    // of the writers, for the plan of several processes
  std::vector<std::string> values;  // of each output: see host/value/values_digest.hpp
  SourceFiles inputs;               // further files that the outputs depend on, such as a config
  bool is_replay = false;           // compute what is written before, and compare it with its provenance
  std::shared_ptr<const JobOptions> job;  // set: the work may be interrupted, or done by several programs
  /// Called from the calling thread a few times a second, and once at the end.
  struct Progress {
    uint64_t done = 0;  // bytes written
    uint64_t total = 0;
    double seconds = 0;
    std::string_view key;
  };
  std::function<void(const Progress&)> progress;
};

/// What a process did of its part of the work.
struct Written {
  std::vector<std::vector<LostValues>> lost;  // for each writer; on the rank that commits
  bool is_committed = true;                   // false: it planned the work, or did a part
  Share share;                                // that part
  fs::path job;  // the folder of a job that is done, to be removed when the program ends well
  std::vector<std::string> differences;  // of a replay
};

/// Streams every item of all writers into files of `transaction` and commits it, with the other ranks of the
/// team, if there are any, and as a step of a job, if `options` have one. Output bytes do not depend on the
/// number of threads or ranks, nor do the tensors that lost values, in the order of the items, those that
/// share their expression once. An error or an interrupt (Errc::interrupted) leaves no target, and without a
/// job no debris.
Written write_all(const std::vector<Writer*>& writers, const StreamingOptions& options,
                  Transaction& transaction);

}  // namespace cbk
