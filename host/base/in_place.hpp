// A file that is changed in place.
#pragma once

#include "host/base/file.hpp"

namespace cbk {

/// Holds the file lock that HDF5 and others use. Belongs to one owner.
class InPlaceFile {
 public:
  /// Errors: `io`, also when another program has the file open and locked.
  explicit InPlaceFile(fs::path path);

  [[nodiscard]] uint64_t size() const;
  /// Whether this is the file that was mapped, not another file that has its name now.
  [[nodiscard]] bool is(const MappedFile& file) const;
  void write(uint64_t offset, ByteView bytes);
  void resize(uint64_t size);
  /// Bytes [offset, size) and the size reach the disk before anything that is written from now on. It does
  /// not wait for a file that is mostly not on the disk yet: a power failure loses such a file anyway, with
  /// or without the change.
  void settle(uint64_t offset);
  void sync();

 private:
  [[nodiscard]] bool is_mostly_on_disk() const;
  fs::path path_;
  FileDescriptor fd_;
};

}  // namespace cbk
