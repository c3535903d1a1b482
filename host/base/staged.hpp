// Files and folders under construction. A Transaction creates them and gives them their names; one that is
// destroyed before that leaves nothing behind.
// Several processes may fill one: the first creates it, the others join it by its name.
// Each belongs to one owner. StagedFile::write may be called from several threads for ranges that do not
// overlap.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "host/base/file.hpp"
#include "host/base/sha256.hpp"

namespace cbk {

/// How a process takes part in a staged file or folder.
struct Role {
  enum class Kind : uint8_t {
    alone,    // creates it; nobody else knows of it
    first,    // creates it under its name; others join
    joining,  // opens what the first one made; writes nothing until it is laid out
  };
  Kind kind = Kind::alone;
  bool is_kept = false;  // it outlives the process, also one that is killed, until one of them commits it
};

/// The future `target`. It has a temporary name from `prepare` on, or earlier if it needs one.
class Staged {
 public:
  Staged(fs::path target, fs::path name, Role role)
      : role_(role), target_(std::move(target)), name_(std::move(name)) {}
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  virtual ~Staged() = default;

  [[nodiscard]] const fs::path& target() const { return target_; }
  [[nodiscard]] const fs::path& name() const { return name_; }
  /// Does everything that may fail before the last step. Afterwards it is whole, under its temporary name,
  /// with the owner and mode of the replaced file. `sync`: on the disk, too. Errors: `io`, `no_space`.
  /// `changed`: something else cut it.
  virtual void prepare(bool sync) = 0;
  /// Gives up the temporary name: it stays on the disk.
  void release();
  /// The same for all that is in it.
  virtual void leave() { release(); }
  /// Writes are not ignored any more: what the first process wrote itself is there.
  virtual void begin_filling() = 0;
  /// Adds what was written until `begin_filling`: the same in all processes, or they would not fit together.
  virtual void add_layout(Sha256& digest) = 0;
  /// It is committed: what has its temporary name now is not kept.
  virtual void end_keeping() { role_.is_kept = false; }

 protected:
  /// Call this before creating it.
  void take_name();
  [[nodiscard]] bool has_name() const { return has_name_; }
  [[nodiscard]] const Role& role() const { return role_; }
  [[nodiscard]] bool joins() const { return role_.kind == Role::Kind::joining; }

 private:
  Role role_;
  fs::path target_;
  fs::path name_;
  bool has_name_ = false;
};

class StagedFile final : public Staged {
 public:
  /// `target` as returned by `replaceable_file`. The file has no name and is in `folder`, on the target's
  /// file system. If the system does not support that, it is called `name` and only the owner can access it.
  /// In another role than `alone` it always has its name. Errors: `io`.
  StagedFile(fs::path target, fs::path name, const fs::path& folder, Role role = {});
  ~StagedFile() override;

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// Sets the length and allocates the blocks: a full disk is found here (`no_space`).
  void reserve(uint64_t size);
  void write(uint64_t offset, ByteView bytes);
  void prepare(bool sync) override;
  void begin_filling() override;
  void add_layout(Sha256& digest) override;

 private:
  FileDescriptor fd_;
  std::optional<Sha256> layout_;  // of what is written until `begin_filling`, if others join
  bool is_private_ = false;       // created for us alone, until it is prepared
  bool is_ignoring_;              // what is written
  bool is_remote_ = false;        // then what is written is sent early, and synced: errors come late
  uint64_t unsent_ = 0;           // bytes
  uint64_t reserved_ = 0;         // bytes
  /// Writers of one inode take turns in the kernel anyway, but spinning. Waiting here leaves the processor to
  /// the kernels.
  std::mutex turn_;
};

class StagedFolder final : public Staged {
 public:
  /// Whether a file of the old folder is part of what is replaced, by its name.
  using IsReplaced = std::function<bool(std::string_view name)>;
  /// `target` as returned by `replaceable_folder`. Other files of an old folder stay: only files for which
  /// `is_replaced` is true, or that the new folder has too, are removed. `inner`: the folders in it.
  /// Errors: `io`.
  StagedFolder(fs::path target, fs::path name, IsReplaced is_replaced,
               const std::set<std::string>& inner = {}, Role role = {});
  ~StagedFolder() override;

  /// A file in it or in one of its folders ("inner/file"), kept as long as the folder object.
  StagedFile& file(const std::string& name);
  void prepare(bool sync) override;
  void begin_filling() override;
  void add_layout(Sha256& digest) override;
  void leave() override;

 private:
  [[nodiscard]] FileDescriptor made(const fs::path& folder) const;
  void make();
  void carry_over(const fs::path& old, const fs::path& made, bool sync) const;
  void finish(const fs::path& old, const fs::path& made, const FileDescriptor& fd, bool sync) const;
  IsReplaced is_replaced_;
  FileDescriptor fd_;  // once it is made
  std::map<std::string, FileDescriptor> inner_;
  std::deque<StagedFile> files_;
};

}  // namespace cbk
