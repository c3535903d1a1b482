// Files and folders under construction. A Transaction creates them and gives them their names; one that is
// destroyed before that leaves nothing behind.
// Each belongs to one owner. StagedFile::write may be called from several threads for ranges that do not
// overlap.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "host/base/file.hpp"

namespace cbk {

/// The future `target`. It has a temporary name from `prepare` on, or earlier if it needs one.
class Staged {
 public:
  Staged(fs::path target, fs::path name) : target_(std::move(target)), name_(std::move(name)) {}
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  virtual ~Staged() = default;

  [[nodiscard]] const fs::path& target() const { return target_; }
  [[nodiscard]] const fs::path& name() const { return name_; }
  /// Does everything that may fail before the last step. Afterwards it is whole, under its temporary name,
  /// with the owner and mode of the replaced file. `sync`: on the disk, too. Errors: `io`, `no_space`.
  virtual void prepare(bool sync) = 0;
  /// Gives up the temporary name.
  void release();

 protected:
  /// Call this before creating it.
  void take_name();
  [[nodiscard]] bool has_name() const { return has_name_; }

 private:
  fs::path target_;
  fs::path name_;
  bool has_name_ = false;
};

class StagedFile final : public Staged {
 public:
  /// `target` as returned by `replaceable_file`. The file has no name and is in `folder`, on the target's
  /// file system. If the system does not support that, it is called `name` and only the owner can access it.
  /// Errors:
  /// `io`.
  StagedFile(fs::path target, fs::path name, const fs::path& folder);
  ~StagedFile() override;

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// Sets the length and allocates the blocks: a full disk is found here (`no_space`).
  void reserve(uint64_t size);
  void write(uint64_t offset, ByteView bytes);
  void prepare(bool sync) override;

 private:
  FileDescriptor fd_;
  bool is_private_ = false;  // created for us alone, until it is prepared
  /// Writers of one inode take turns in the kernel anyway, but spinning. Waiting here leaves the processor to
  /// the kernels.
  std::mutex turn_;
};

class StagedFolder final : public Staged {
 public:
  /// Whether a file of the old folder is part of what is replaced, by its name.
  using IsReplaced = std::function<bool(std::string_view name)>;
  /// `target` as returned by `replaceable_folder`. Other files of an old folder stay: only files for which
  /// `is_replaced` is true, or that the new folder has too, are removed. Errors: `io`.
  StagedFolder(fs::path target, fs::path name, IsReplaced is_replaced);
  ~StagedFolder() override;

  /// A file in it, kept as long as the folder object.
  StagedFile& file(const std::string& name);
  void prepare(bool sync) override;

 private:
  void make();
  void carry_over(bool sync) const;
  IsReplaced is_replaced_;
  FileDescriptor fd_;  // once it is made
  std::deque<StagedFile> files_;
};

}  // namespace cbk
