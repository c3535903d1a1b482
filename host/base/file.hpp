// Files of the operating system, and files for reading: mapped, immutable and thread-safe.
// Outputs are in staged.hpp and transaction.hpp.
#pragma once

#include <cerrno>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "host/base/bytes.hpp"

namespace cbk {

namespace fs = std::filesystem;

/// Between a file and memory the kernel copies fastest in pieces that stay in the second-level cache, and
/// when file offset and address are equal modulo a cache line (a misaligned `rep movsb` is three times
/// slower).
constexpr uint64_t io_piece = 256ULL << 10;
constexpr uint64_t io_alignment = 64;

/// Closes on destruction.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor();
  [[nodiscard]] int get() const { return fd_; }
  int release();

 private:
  int fd_ = -1;
};

/// The result of a system call that is repeated if a signal ends it early.
template <typename Call>
auto retried(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

/// An open file or folder, or an `io` error: "cannot <action> '<path>': …".
FileDescriptor open_file(std::string_view action, const fs::path& path, int flags, unsigned mode = 0);

/// Writes its bytes and its length, or its names, to the disk. Errors: `io`.
void sync_to_disk(const FileDescriptor& fd, const fs::path& path);

/// Writes all of `bytes`. Errors: `io`, `no_space`.
void write_at(const FileDescriptor& fd, uint64_t offset, ByteView bytes, const fs::path& path);

/// How elements are read that are not in one long range: in a mapping, which is fastest on a local disk, or
/// by pread, because on a network each page fault waits for a few pages alone.
enum class ReadBy { file_system, pread, mmap };

/// For files that are opened from now on; `file_system`, the default: as suits the type of theirs. Returns
/// the choice before.
ReadBy choose_reading(ReadBy how) noexcept;

/// Whether it is on a file system of a network, or of a program in user space.
bool is_remote(const FileDescriptor& fd) noexcept;

/// A whole file mapped read-only. Opened once per path and kept alive by the storages that point into it.
class MappedFile {
 public:
  /// `index`: the file that names this one, if any. Errors: `io` with path and reason; a directory or a
  /// special file is refused.
  static std::shared_ptr<const MappedFile> open(const fs::path& path,
                                                std::shared_ptr<const MappedFile> index = nullptr);
  /// Bytes [offset, offset + length) of a file, as a file of its own with the same path. Errors: `format`.
  static std::shared_ptr<const MappedFile> part(std::shared_ptr<const MappedFile> whole, uint64_t offset,
                                                uint64_t length);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] const fs::path& path() const { return path_; }
  [[nodiscard]] uint64_t size() const { return size_; }
  [[nodiscard]] ByteView bytes() const { return {data_, size_}; }
  /// Where it begins in the file of its path.
  [[nodiscard]] uint64_t begin() const { return begin_; }
  /// Of the whole file.
  [[nodiscard]] int fd() const { return whole_ ? whole_->fd() : fd_.get(); }
  /// Bytes [offset, offset + length), or a `format` error with the name `what`.
  [[nodiscard]] ByteView slice(uint64_t offset, uint64_t length, std::string_view what) const;
  /// Copies bytes [offset, offset + out.size()). Long ranges are read from the descriptor: a mapping would
  /// cost a page fault for each few pages, which is slower than the copy itself.
  void read(uint64_t offset, std::span<std::byte> out) const;
  /// The bytes, if they should be read in the mapping; else empty.
  [[nodiscard]] ByteView addressable() const { return is_pread_ ? ByteView() : bytes(); }
  /// A hint that these bytes will be read soon, in no order: the system reads them in theirs.
  void expect(uint64_t offset, uint64_t length) const noexcept;
  /// A hint that these pages will not be read again soon: they leave our address space, not the page cache.
  void drop(uint64_t offset, uint64_t length) const noexcept;
  /// The time of its last change when it was opened: nanoseconds since 1970.
  [[nodiscard]] int64_t modified() const { return written_.tv_sec * 1'000'000'000 + written_.tv_nsec; }
  /// Device and inode.
  [[nodiscard]] std::pair<uint64_t, uint64_t> identity() const { return {device_, inode_}; }
  /// Same device and inode.
  [[nodiscard]] bool is_same_file(const fs::path& other) const;
  /// An `io` error if the file, or the index that names it, has another size or time than when it was opened,
  /// or if its name belongs to another file now.
  void refuse_changed() const;

 private:
  MappedFile() = default;
  fs::path path_;
  std::shared_ptr<const MappedFile> index_;
  std::shared_ptr<const MappedFile> whole_;  // set: this is a part of that one
  uint64_t begin_ = 0;                       // in the whole file
  FileDescriptor fd_;
  const std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  bool is_pread_ = false;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  timespec written_{};  // st_mtim
  timespec changed_{};  // st_ctim, which no program can set back
};

/// Bytes of all files that were ever mapped. The memory for their content grows with this.
uint64_t mapped_bytes() noexcept;

/// Files that were read, each once.
using SourceFiles = std::set<std::shared_ptr<const MappedFile>>;

/// Whole content of a small file. Errors: `io`; larger than `limit` is a `format` error.
std::string read_file(const fs::path& path, uint64_t limit = 1ULL << 30);

/// "." for a bare name.
fs::path folder_of(const fs::path& path);

}  // namespace cbk
