// What is written of a plan: the blocks that processes have finished, in memory and, for a job that may be
// interrupted (--resume, --plan), in a file: its journal. A block is noted in the file once its bytes are on
// the disk.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "host/base/digest.hpp"
#include "host/base/file.hpp"
#include "host/base/staged.hpp"
#include "host/formats/writer.hpp"
#include "host/streaming/blocks.hpp"
#include "host/tensor/kernels/losses.hpp"

namespace cbk {

/// Fixed size, as it is in files and messages. With `end` -1: the sources of the item are verified.
struct FinishedBlock {
  uint32_t output = 0;  // the writer's number in the commit
  uint32_t crc = 0;     // of the elements, if the writer wants it
  uint64_t item = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t overflowed = 0, changed = 0, vanished = 0;
  uint64_t bytes = 0;                           // of the elements
  uint64_t packed_offset = 0, packed_size = 0;  // of a piece for a sink, in the pieces of its process
  Digest digest{};  // BLAKE3 of the elements, if there is a provenance; of several blocks: of their digests
  uint32_t process = 0;  // whose pieces these are; not in files
  uint32_t check = 0;    // of the record
};
static_assert(sizeof(FinishedBlock) == 120);

using FinishedBlocks = std::vector<FinishedBlock>;

/// A process's own blocks. Thread-safe.
class Ledger {
 public:
  /// `pieces`: the file for what goes to sinks; made when it is needed. `file`: empty for memory alone.
  explicit Ledger(fs::path pieces, const fs::path& file = {});
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  /// Keeps a packed piece and sets its place.
  void keep(FinishedBlock& block, ByteView packed);
  /// Notes a block whose bytes were written to `file`, or kept.
  void note(const FinishedBlock& block, StagedFile* file);
  /// Everything noted is on the disk. Errors: `io`.
  void flush();
  [[nodiscard]] FinishedBlocks blocks() const;
  [[nodiscard]] const fs::path& pieces() const { return pieces_name_; }

 private:
  void write_pending();
  void flush_now_and_then();

  fs::path pieces_name_;
  fs::path name_;
  std::mutex pieces_mutex_;
  FileDescriptor pieces_;
  uint64_t pieces_end_ = 0;

  mutable std::mutex mutex_;  // everything below
  FinishedBlocks blocks_;
  size_t flushed_ = 0;
  std::set<StagedFile*> written_;  // since the last flush
  std::exception_ptr failure_;     // of the thread

  std::mutex flushing_;
  FileDescriptor file_;
  std::condition_variable_any ended_;
  std::jthread thread_;
};

/// The blocks in a ledger's file, up to the first that is not whole. Errors: `io`.
FinishedBlocks read_ledger(const fs::path& file);

/// What a process sends to the one that completes the output: its blocks, and the name of its pieces.
std::string message_of(const fs::path& pieces, const FinishedBlocks& blocks);
/// Adds the blocks of all processes to `blocks`, with the places of their pieces in `pieces`, to which it
/// adds these. The memory of each message is given back as it is read: together they are as large as the
/// blocks.
void take_messages(std::vector<std::string> messages, FinishedBlocks& blocks, std::vector<fs::path>& pieces);

/// One packed piece. Errors: `io`, `format`.
Bytes read_piece(const fs::path& pieces, const FinishedBlock& block);

}  // namespace cbk
