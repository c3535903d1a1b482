// The one door to the operating system's files: mapped inputs, staged outputs.
// MappedFile is immutable and thread-safe. StagedFile and StagedDirectory belong to one owner;
// StagedFile::write may be called from several threads for ranges that do not overlap.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
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

/// A whole file mapped read-only. Opened once per path and kept alive by the storages that point into it.
class MappedFile {
 public:
  /// Errors: `io` with path and reason; a directory or a special file is refused.
  static std::shared_ptr<const MappedFile> open(const fs::path& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] const fs::path& path() const { return path_; }
  [[nodiscard]] uint64_t size() const { return size_; }
  [[nodiscard]] ByteView bytes() const { return {data_, size_}; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  /// Bytes [offset, offset + length), or a `format` error that names `what`.
  [[nodiscard]] ByteView slice(uint64_t offset, uint64_t length, std::string_view what) const;
  /// Copies bytes [offset, offset + out.size()). Long ranges are read from the descriptor: a mapping would
  /// cost a page fault for each few pages, which is slower than the copy itself.
  void read(uint64_t offset, std::span<std::byte> out) const;
  /// A hint that these pages will not be read again soon: they leave our address space, not the page cache.
  void drop(uint64_t offset, uint64_t length) const noexcept;
  /// Same device and inode.
  [[nodiscard]] bool is_same_file(const fs::path& other) const;

 private:
  MappedFile() = default;
  fs::path path_;
  FileDescriptor fd_;
  const std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
};

/// Whole content of a small file. Errors: `io`; larger than `limit` is a `format` error.
std::string read_file(const fs::path& path, uint64_t limit = 1ULL << 30);

/// Writes `content` so that `path` has the old content or the new one, never a part. Refuses an existing path
/// unless `overwrite`.
void write_file(const fs::path& path, std::string_view content, bool overwrite);

/// An `exists` error when something is at `target`, unless `overwrite`.
void refuse_existing(const fs::path& target, bool overwrite);

/// A file under construction. It has no name, or a temporary one beside its target, until `commit`;
/// when it is destroyed before that, nothing is left.
class StagedFile {
 public:
  /// Refuses (`exists`) a target that is there unless `overwrite`, and always what is no regular file; a
  /// symbolic link is followed. Where the target's folder is made later, the file lies in `staging` until
  /// then, which is on the same file system. Errors: `io`.
  StagedFile(fs::path target, bool overwrite, const fs::path& staging = {});
  StagedFile(StagedFile&&) noexcept = default;
  StagedFile& operator=(StagedFile&&) = delete;
  ~StagedFile();

  [[nodiscard]] const fs::path& target() const { return target_; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  /// A path by which a library can open the file under construction.
  [[nodiscard]] fs::path working_path() const;
  /// Sets the length and allocates the blocks: a full disk is found here (`no_space`).
  void reserve(uint64_t size);
  void write(uint64_t offset, ByteView bytes);
  void sync();
  /// Gives the file its name, atomically.
  void commit();

 private:
  fs::path target_;
  fs::path temporary_;  // empty: the file has no name yet
  FileDescriptor fd_;
  bool overwrite_ = false;
  /// Writers of one inode take turns in the kernel anyway, but spinning: waiting here leaves the processor to
  /// the kernels.
  std::unique_ptr<std::mutex> turn_ = std::make_unique<std::mutex>();
};

/// A directory under construction: a temporary sibling, which `commit` renames to the target.
class StagedDirectory {
 public:
  /// Tells by its name that a file of the old folder belongs to what is replaced.
  using IsReplaced = std::function<bool(std::string_view name)>;
  /// With `overwrite`, the other files of an old folder stay: only what `is_replaced` names, or the new
  /// folder has too, goes. A folder with folders in it is refused. A symbolic link to a folder is followed.
  StagedDirectory(const fs::path& target, bool overwrite, IsReplaced is_replaced);
  StagedDirectory(StagedDirectory&& other) noexcept;
  StagedDirectory& operator=(StagedDirectory&&) = delete;
  ~StagedDirectory();
  [[nodiscard]] const fs::path& target() const { return target_; }
  [[nodiscard]] const fs::path& path() const { return temporary_; }
  /// Makes the temporary one, in which the files then get their names.
  void make();
  void commit();

 private:
  fs::path target_;
  fs::path temporary_;
  FileDescriptor fd_;  // of the temporary one
  bool overwrite_ = false;
  IsReplaced is_replaced_;
};

/// For a program that has to end at once (a second Ctrl-C): removes what is under construction and has a
/// name.
void remove_staged_files() noexcept;

}  // namespace cbk
