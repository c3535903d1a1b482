// Fills the files of one writer: workers take blocks, compute them and write them in place.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <unordered_set>
#include <vector>

#include "host/streaming/blocks.hpp"
#include "host/streaming/ledger.hpp"
#include "host/streaming/write_all.hpp"

namespace cbk {

/// What a process does of a plan that several processes fill.
struct Assignment {
  Share share;
  uint32_t output = 0;                   // the writer's number in the commit
  uint64_t block_bytes = 0;              // the same in all processes
  Ledger* ledger = nullptr;              // of this process
  const FinishedBlocks* done = nullptr;  // earlier: not done again
};

/// Called once by its owner: `fill`, then `complete`.
class Execution {
 public:
  /// `slots`: none for a replay, which writes nothing. `assignment`: nullptr if this process fills
  /// everything.
  Execution(Writer& writer, std::vector<Slot> slots, const StreamingOptions& options,
            const Assignment* assignment);

  /// Fills the blocks of the assignment. Errors: of sources and outputs, `interrupted`.
  void fill();
  /// Verifies the sources of the items that begin in the assignment, which depends on all of their bytes, and
  /// notes that. Who completes the output verifies those of which nobody noted it.
  void verify();
  /// The blocks that `fill` has finished, those of a whole item joined to one. Only without an assignment.
  [[nodiscard]] FinishedBlocks take_finished();
  /// Finishes the output: `blocks` of all processes. The result: tensors that lost values, in the order of
  /// the items, those that share their expression once. `pieces`: the file of a process with packed pieces.
  /// Errors: `value`.
  std::vector<LostValues> complete(FinishedBlocks blocks,
                                   const std::function<fs::path(const FinishedBlock&)>& pieces);
  /// The digests of the items, after `complete`, if the options have a provenance.
  [[nodiscard]] std::vector<ItemDigest> digests() const;

 private:
  void work();
  bool next(Block& block);
  void process(const Block& block);
  void append(PieceSink& sink, uint64_t turn, Bytes packed, FinishedBlock& done);
  void append_in_turn(PieceSink& sink, uint64_t turn, Bytes packed);
  bool finish(const Block& block, FinishedBlock done);
  void report_until_done();
  void report();
  [[nodiscard]] bool is_done(const Block& block) const;
  [[nodiscard]] bool has_digests() const { return options_.provenance.has_value(); }
  void verify_item(size_t item, std::unordered_set<const Expression*>& seen) const;
  void append_kept(const FinishedBlocks& blocks, const std::function<fs::path(const FinishedBlock&)>& pieces);
  std::vector<LostValues> lost_values(const std::map<size_t, Losses>& losses) const;

  Writer& writer_;
  const std::vector<Slot> slots_;
  const StreamingOptions& options_;
  const Assignment* assignment_;
  const uint64_t block_bytes_;
  const std::vector<Item>& items_;
  const std::vector<size_t> order_;
  std::set<std::pair<size_t, int64_t>> done_before_;  // item and begin
  std::set<size_t> begins_here_;                      // items whose first block is in the assignment
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  uint64_t total_ = 0;
  std::atomic<uint64_t> done_{0};
  std::atomic<size_t> current_{0};

  std::mutex mutex_;  // everything below
  BlockWalk walk_;
  std::condition_variable finished_;
  std::condition_variable next_turn_;
  uint64_t turn_ = 0;  // whose piece is appended next
  int running_ = 0;
  std::map<size_t, FinishedBlocks> begun_;  // items with some blocks written
  std::map<size_t, int64_t> written_;       // elements of these
  FinishedBlocks whole_;                    // of the items that are written
  std::vector<Digest> digests_;             // of the items, after `complete`
  std::exception_ptr failure_;
};

/// The number of threads for `options`.
int thread_count(const StreamingOptions& options);
/// Bytes of a block, so that all blocks in flight fit into the memory.
uint64_t block_size(const StreamingOptions& options);
/// The same for any number of threads of this machine or another.
uint64_t shared_block_size(const StreamingOptions& options);
/// Elements per write at file offset `offset`: up to the next multiple of a piece, or, if the expression
/// prefers whole rows, as many as stay in the second-level cache until they are written.
int64_t piece_elements(const Expression& expression, uint64_t offset);
/// A block in flight needs its result, an operand of up to twice the width, and a copy in source order.
constexpr uint64_t buffers_per_block = 4;

}  // namespace cbk
