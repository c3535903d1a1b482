// Datasets that only the HDF5 library can read (virtual datasets, extensible arrays, SZIP, N-Bit,
// scale-offset, filters of plugins). The library crashes or hangs on hostile files, so it runs in a child
// process, cbk-hdf5. The child has the one file, limits on its memory and time, and cannot open anything
// else.
#pragma once

#include <chrono>
#include <deque>
#include <mutex>
#include <optional>
#include <set>

#include "host/formats/hdf5/dataset.hpp"
#include "host/formats/hdf5/library/protocol.hpp"

namespace cbk::hdf5 {

/// The child process of one file, with one budget of time for all datasets of it. Thread-safe: one request at
/// a time.
class LibraryReader {
 public:
  /// Starts nothing yet. `memory` is charged for the child while it runs.
  LibraryReader(std::shared_ptr<const MappedFile> file, MemoryPtr memory)
      : file_(std::move(file)), memory_(std::move(memory)) {}
  LibraryReader(const LibraryReader&) = delete;
  LibraryReader& operator=(const LibraryReader&) = delete;
  ~LibraryReader();

  /// Filters whose plugins the child must load before it is restricted.
  void need(const std::vector<Filter>& filters);
  /// Checks with an empty request whether a dataset can be read. Errors: `unsupported` (a missing plugin,
  /// data in other files), `format` (damage, time or memory beyond the limits), `io` (the child cannot be
  /// started).
  void probe(const library::Request& request);
  /// Bytes from `offset` on of a dataset of `size` bytes. It requests whole windows and keeps the last few of
  /// them:
  /// requests are expensive, and readers read neighbouring parts. Errors: as `probe`.
  void read(const library::Request& dataset, uint64_t size, uint64_t offset, std::span<std::byte> out);
  /// The number of bytes that the file stores for a dataset. Errors: as `probe`.
  uint64_t stored_size(const library::Request& dataset);
  [[nodiscard]] const std::shared_ptr<const MappedFile>& file() const { return file_; }

 private:
  struct Window {
    uint64_t address = 0;  // of the dataset
    uint64_t begin = 0;    // byte
    Bytes bytes;
  };
  const Window& window(const library::Request& dataset, uint64_t size, uint64_t offset);
  void ask(const library::Request& request, std::span<std::byte> out);
  void start();
  void stop() noexcept;
  library::Reply receive_reply();
  void receive(std::span<std::byte> out);
  [[noreturn]] void fail_stopped();
  /// Fails if the time is used up.
  void refuse_spent();

  std::shared_ptr<const MappedFile> file_;
  MemoryPtr memory_;
  std::optional<MemoryLoan> loan_;
  std::mutex mutex_;
  std::set<uint16_t> filters_;
  FileDescriptor socket_;
  int child_ = -1;
  std::deque<Window> windows_;  // the last one used is the first
  using Clock = std::chrono::steady_clock;
  Clock::duration waited_{};   // for all replies
  Clock::duration without_{};  // since the child has last read new bytes
  std::string spent_;          // why nothing more is asked
};

/// The elements of a dataset as little-endian numbers of `dtype`, read by the library. Whether it can read
/// them is checked now. Errors: as LibraryReader::read.
StoragePtr library_storage(std::shared_ptr<LibraryReader> reader, const Dataset& dataset,
                           uint64_t object_address, DType dtype);

}  // namespace cbk::hdf5
