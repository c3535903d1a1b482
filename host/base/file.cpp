#include "host/base/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "host/base/entries.hpp"
#include "host/base/scratch.hpp"

namespace cbk {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int FileDescriptor::release() {
  return std::exchange(fd_, -1);
}

FileDescriptor open_file(std::string_view action, const fs::path& path, int flags, unsigned mode) {
  FileDescriptor fd(retried([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode); }));
  if (fd.get() < 0) fail_errno(action, path.string());
  return fd;
}

void sync_to_disk(const FileDescriptor& fd, const fs::path& path) {
  // EINVAL: a file system that does not support it; most do not for folders.
  if (retried([&] { return ::fsync(fd.get()); }) != 0 && errno != EINVAL) fail_errno("sync", path.string());
}

void write_at(const FileDescriptor& fd, uint64_t offset, ByteView bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t done =
        retried([&] { return ::pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (done < 0) fail_errno("write", path.string());
    offset += static_cast<uint64_t>(done);
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
}

namespace {

std::atomic<uint64_t> bytes_mapped{0};
std::atomic<ReadBy> read_by{ReadBy::file_system};

}  // namespace

/// The numbers are in statfs(2), in Linux's magic.h and in the sources of the file systems.
bool is_remote(const FileDescriptor& fd) noexcept {
  constexpr std::array<uint32_t, 14> remote = {
      0x6969,      // NFS
      0x517B,      // SMB
      0xFF534D42,  // CIFS
      0xFE534D42,  // SMB 2
      0x0BD00BD0,  // Lustre
      0x47504653,  // GPFS
      0x65735546,  // FUSE
      0x00C36400,  // Ceph
      0x01021997,  // 9P
      0x5346414F,  // AFS
      0x19830326,  // BeeGFS
      0xAAD7AAEA,  // PanFS
      0x20030528,  // OrangeFS
      0x7461636F,  // OCFS2
  };
  struct statfs info {};
  if (::fstatfs(fd.get(), &info) != 0) return false;
  return std::ranges::find(remote, static_cast<uint32_t>(info.f_type)) != remote.end();
}

ReadBy choose_reading(ReadBy how) noexcept {
  return read_by.exchange(how);
}

uint64_t mapped_bytes() noexcept {
  return bytes_mapped;
}

namespace {

/// "did you mean 'llama'?" for a path that does not exist: names in the last folder that does. Empty if none
/// is similar.
std::string advice_for_missing(fs::path path) {
  std::error_code ignored;
  if (path.filename().empty()) path = path.parent_path();
  while (path.has_parent_path() && path.has_relative_path() && !fs::exists(path.parent_path(), ignored))
    path = path.parent_path();
  std::vector<std::string> names;
  try {
    for (const fs::directory_entry& entry : entries_of(folder_of(path)))
      names.push_back(entry.path().filename().string());
  } catch (const Error&) {
    return {};
  }
  std::ranges::sort(names);
  std::vector<std::string> near = nearest(path.filename().string(), names, 2);
  for (std::string& name : near) name = quote((path.parent_path() / name).string(), 300);
  return near.empty() ? "" : fmt::format("did you mean {}?", fmt::join(near, " or "));
}

FileDescriptor open_to_read(const fs::path& path) {
  try {
    // O_NONBLOCK: opening a FIFO must not hang.
    return open_file("open", path, O_RDONLY | O_NONBLOCK);
  } catch (const Error& error) {
    std::error_code ignored;
    ErrorParts parts = error.parts();
    if (!fs::exists(path, ignored)) parts.advice = advice_for_missing(path);
    throw Error(error.code(), std::move(parts));
  }
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const fs::path& path,
                                                   std::shared_ptr<const MappedFile> index) {
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  file->index_ = std::move(index);
  file->fd_ = open_to_read(path);
  struct stat info {};
  if (::fstat(file->fd_.get(), &info) != 0) fail_errno("look at", path.string());
  if (S_ISDIR(info.st_mode)) fail_errno("read", path.string(), EISDIR);
  if (!S_ISREG(info.st_mode)) fail(Errc::io, "cannot read '{}': not a regular file", path.string());
  file->size_ = static_cast<uint64_t>(info.st_size);
  file->device_ = info.st_dev;
  file->inode_ = info.st_ino;
  file->written_ = info.st_mtim;
  file->changed_ = info.st_ctim;
  const ReadBy how = read_by;
  file->is_pread_ = how == ReadBy::pread || (how == ReadBy::file_system && is_remote(file->fd_));
  if (file->size_ > 0) {
    void* data = ::mmap(nullptr, file->size_, PROT_READ, MAP_SHARED, file->fd_.get(), 0);
    if (data == MAP_FAILED) fail_errno("map", path.string());
    file->data_ = static_cast<const std::byte*>(data);
    bytes_mapped += file->size_;
  }
  return file;
}

std::shared_ptr<const MappedFile> MappedFile::part(std::shared_ptr<const MappedFile> whole, uint64_t offset,
                                                   uint64_t length) {
  const ByteView bytes = whole->slice(offset, length, "a part");
  std::shared_ptr<MappedFile> part(new MappedFile);
  part->path_ = whole->path_;
  part->data_ = bytes.data();
  part->size_ = length;
  part->is_pread_ = whole->is_pread_;
  part->device_ = whole->device_;
  part->inode_ = whole->inode_;
  part->written_ = whole->written_;
  part->begin_ = offset;
  part->whole_ = std::move(whole);
  return part;
}

MappedFile::~MappedFile() {
  if (whole_ == nullptr && data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

ByteView MappedFile::slice(uint64_t offset, uint64_t length, std::string_view what) const {
  if (offset > size_ || length > size_ - offset) {
    fail(Errc::format, "{} should be at bytes {} to {}, but the file has {} bytes; is it cut short?", what,
         offset, offset + length, size_);
  }
  return bytes().subspan(offset, length);
}

namespace {

/// Below this, the page faults of a mapping cost less than a system call.
constexpr uint64_t smallest_pread = 16ULL << 10;

void pread_all(int fd, uint64_t offset, std::span<std::byte> out, const fs::path& path) {
  while (!out.empty()) {
    const ssize_t done =
        retried([&] { return ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset)); });
    if (done < 0) fail_errno(fmt::format("read byte {} of", offset), path.string());
    if (done == 0)
      fail(Errc::io, "'{}' ends at byte {}: it became shorter while it was read", path.string(), offset);
    offset += static_cast<uint64_t>(done);
    out = out.subspan(static_cast<size_t>(done));
  }
}

}  // namespace

void MappedFile::read(uint64_t offset, std::span<std::byte> out) const {
  const ByteView source = slice(offset, out.size(), "a range");
  if (whole_) return whole_->read(begin_ + offset, out);
  if (out.size() < smallest_pread && !is_pread_) {
    std::copy(source.begin(), source.end(), out.begin());
    return;
  }
  const auto address = reinterpret_cast<uintptr_t>(out.data());
  if ((address - offset) % io_alignment == 0) {
    pread_all(fd_.get(), offset, out, path_);
    return;
  }
  Scratch aligned(io_piece + io_alignment);
  for (uint64_t done = 0; done < out.size(); done += io_piece) {
    const std::span<std::byte> part = out.subspan(done, std::min<uint64_t>(io_piece, out.size() - done));
    const std::span<std::byte> piece = aligned.bytes().subspan((offset + done) % io_alignment, part.size());
    pread_all(fd_.get(), offset + done, piece, path_);
    std::memcpy(part.data(), piece.data(), piece.size());
  }
}

void MappedFile::expect(uint64_t offset, uint64_t length) const noexcept {
  if (whole_) return whole_->expect(begin_ + offset, length);
  (void)::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(length),
                        POSIX_FADV_WILLNEED);
}

void MappedFile::drop(uint64_t offset, uint64_t length) const noexcept {
  if (whole_) return whole_->drop(begin_ + offset, length);
  // Includes the unit in which the range begins: the part before it was usually read before. So a run of
  // small ranges is released as a whole, by few system calls: each of them interrupts all other threads.
  constexpr uint64_t page = 4096;
  constexpr uint64_t few_pages = 64ULL << 10;  // a page fault maps as many
  const uint64_t unit = length < few_pages ? few_pages : page;
  const uint64_t begin = offset / unit * unit;
  const uint64_t end = std::min(offset + length, size_) / unit * unit;
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

bool MappedFile::is_same_file(const fs::path& other) const {
  struct stat info {};
  return ::stat(other.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

namespace {

bool is_same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

}  // namespace

void MappedFile::refuse_changed() const {
  if (whole_) return whole_->refuse_changed();
  if (index_ != nullptr) index_->refuse_changed();
  struct stat now {};
  if (::fstat(fd_.get(), &now) != 0) fail_errno("look at", path_.string());
  struct stat named {};
  const bool is_there = ::stat(path_.c_str(), &named) == 0;
  const bool is_same = static_cast<uint64_t>(now.st_size) == size_ && is_same_time(now.st_mtim, written_) &&
                       is_same_time(now.st_ctim, changed_) &&
                       (!is_there || (named.st_dev == device_ && named.st_ino == inode_));
  if (!is_same) {
    throw Error(Errc::changed,
                {.problem = fmt::format("cannot use '{}': it was changed or replaced after it was opened",
                                        path_.string()),
                 .file = path_.string(),
                 .advice = "open it again when nothing writes to it"});
  }
}

std::string read_file(const fs::path& path, uint64_t limit) {
  auto file = MappedFile::open(path);
  if (file->size() > limit) {
    fail(Errc::format, "'{}' has {}; at most {} are expected here", path.string(), format_size(file->size()),
         format_size(limit));
  }
  return std::string(as_text(file->bytes()));
}

fs::path folder_of(const fs::path& path) {
  fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

}  // namespace cbk
