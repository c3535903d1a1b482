// Datasets that are stored in ways which only the HDF5 library reads (virtual datasets, extensible arrays,
// SZIP, N-Bit, scale-offset, filters of plugins). The library crashes or hangs on hostile files, so it runs
// in a child process, cbk-hdf5, which has the one file, a limit on its memory, and no way to open anything
// else.
#pragma once

#include <deque>
#include <mutex>
#include <set>

#include "host/formats/hdf5/dataset.hpp"
#include "host/formats/hdf5/library/protocol.hpp"

namespace cbk::hdf5 {

/// The child process of one file. Thread-safe: one request at a time.
class LibraryReader {
 public:
  /// Nothing is started yet.
  explicit LibraryReader(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {}
  LibraryReader(const LibraryReader&) = delete;
  LibraryReader& operator=(const LibraryReader&) = delete;
  ~LibraryReader();

  /// Filters whose plugins the child must load before it is locked in.
  void need(const std::vector<Filter>& filters);
  /// Whether a dataset can be read. Errors: `unsupported` (a missing plugin, data in other files), `format`
  /// (damage, time or memory beyond the limits), `io` (the child cannot be started).
  void probe(const library::Request& request);
  /// Bytes from `offset` on of a dataset of `size` bytes. Whole windows are asked for, and the last few of
  /// them are kept: a request has its price, and readers take neighbouring parts. Errors: as `probe`.
  void read(const library::Request& dataset, uint64_t size, uint64_t offset, std::span<std::byte> out);
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
  void receive(std::span<std::byte> out);
  [[noreturn]] void fail_stopped();

  std::shared_ptr<const MappedFile> file_;
  std::mutex mutex_;
  std::set<uint16_t> filters_;
  FileDescriptor socket_;
  int child_ = -1;
  std::deque<Window> windows_;  // the last one used is the first
};

/// The elements of a dataset as little-endian numbers of `dtype`, read by the library. Whether it can is
/// asked now. Errors: as LibraryReader::read.
StoragePtr library_storage(std::shared_ptr<LibraryReader> reader, const Dataset& dataset,
                           uint64_t object_address, DType dtype);

}  // namespace cbk::hdf5
