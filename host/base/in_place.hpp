// A file that is changed in place.
#pragma once

#include "host/base/file.hpp"

namespace cbk {

/// Holds the lock of the file that HDF5 and others ask for. Belongs to one owner.
class InPlaceFile {
 public:
  /// Errors: `io`, also when another program has the file open and locked.
  explicit InPlaceFile(fs::path path);

  [[nodiscard]] uint64_t size() const;
  /// Whether this is the file that was mapped, not another one that took its name since.
  [[nodiscard]] bool is(const MappedFile& file) const;
  void write(uint64_t offset, ByteView bytes);
  void resize(uint64_t size);
  /// Bytes [offset, size) and the size reach the disk before anything that is written from now on. A file
  /// that is hardly on the disk itself is not waited for: what is lost with the power then is the file, with
  /// the change or without.
  void settle(uint64_t offset);
  void sync();

 private:
  [[nodiscard]] bool is_mostly_on_disk() const;
  fs::path path_;
  FileDescriptor fd_;
};

}  // namespace cbk
