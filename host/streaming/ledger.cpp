#include "host/streaming/ledger.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "host/base/checksum.hpp"
#include "host/base/stale.hpp"

namespace cbk {
namespace {

constexpr std::chrono::seconds interval(5);  // between two flushes: what a killed process must do again

uint32_t check_of(FinishedBlock block) {
  block.process = 0;
  block.check = 0;
  return extended(Checksum::crc32c, 1, as_bytes({reinterpret_cast<const char*>(&block), sizeof block}));
}

void sync_data(int fd, const fs::path& path) {
  if (retried([&] { return ::fdatasync(fd); }) != 0) fail_errno("write to the disk", path.string());
}

}  // namespace

Ledger::Ledger(fs::path pieces, const fs::path& file) : pieces_name_(std::move(pieces)), name_(file) {
  if (file.empty()) return;
  file_ = open_file("create", file, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
  thread_ = std::jthread([this](const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      ended_.wait_for(lock, stop, interval, [] { return false; });
      if (!stop.stop_requested()) flush_now_and_then();
    }
  });
}

Ledger::~Ledger() {
  if (!name_.empty()) return;
  std::error_code ignored;
  fs::remove(pieces_name_, ignored);
  forget_temporary(pieces_name_);
}

void Ledger::keep(FinishedBlock& block, ByteView packed) {
  const std::lock_guard lock(pieces_mutex_);
  if (pieces_.get() < 0) {
    pieces_ = open_file("create", pieces_name_, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    lock_as_in_use(pieces_);
  }
  block.packed_offset = pieces_end_;
  block.packed_size = packed.size();
  write_at(pieces_, pieces_end_, packed, pieces_name_);
  pieces_end_ += packed.size();
}

void Ledger::note(const FinishedBlock& block, StagedFile* file) {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  blocks_.push_back(block);
  if (file != nullptr) written_.insert(file);
}

void Ledger::write_pending() {
  const std::lock_guard one_at_a_time(flushing_);
  FinishedBlocks pending;
  std::set<StagedFile*> files;
  size_t before = 0;
  {
    const std::lock_guard lock(mutex_);
    before = flushed_;
    pending.assign(blocks_.begin() + static_cast<ptrdiff_t>(flushed_), blocks_.end());
    files.swap(written_);
  }
  if (pending.empty()) return;
  for (StagedFile* file : files) sync_data(file->fd(), file->target());
  {
    const std::lock_guard lock(pieces_mutex_);
    if (pieces_.get() >= 0) sync_data(pieces_.get(), pieces_name_);
  }
  for (FinishedBlock& block : pending) block.check = check_of(block);
  const ByteView bytes = std::as_bytes(std::span<const FinishedBlock>(pending));
  write_at(file_, before * sizeof(FinishedBlock), bytes, name_);
  sync_data(file_.get(), name_);
  const std::lock_guard lock(mutex_);
  flushed_ = before + pending.size();
}

void Ledger::flush_now_and_then() {
  try {
    write_pending();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
  }
}

void Ledger::flush() {
  if (!name_.empty()) write_pending();
}

FinishedBlocks Ledger::blocks() const {
  const std::lock_guard lock(mutex_);
  return blocks_;
}

FinishedBlocks read_ledger(const fs::path& file) {
  const std::string text = read_file(file, 1ULL << 34);
  FinishedBlocks out;
  for (size_t at = 0; at + sizeof(FinishedBlock) <= text.size(); at += sizeof(FinishedBlock)) {
    FinishedBlock block;
    std::memcpy(&block, text.data() + at, sizeof block);
    if (block.check != check_of(block)) break;
    out.push_back(block);
  }
  return out;
}

std::string message_of(const fs::path& pieces, const FinishedBlocks& blocks) {
  std::string out;
  out.reserve(pieces.native().size() + 1 + blocks.size() * sizeof(FinishedBlock));
  out += pieces.native();
  out.push_back('\0');
  out.append(reinterpret_cast<const char*>(blocks.data()), blocks.size() * sizeof(FinishedBlock));
  return out;
}

void take_messages(std::vector<std::string> messages, FinishedBlocks& blocks, std::vector<fs::path>& pieces) {
  size_t bytes = 0;
  for (const std::string& message : messages) bytes += message.size();
  blocks.reserve(blocks.size() + bytes / sizeof(FinishedBlock));
  for (std::string& kept : messages) {
    const std::string message = std::exchange(kept, {});
    const size_t end = message.find('\0');
    for (size_t at = end + 1; at + sizeof(FinishedBlock) <= message.size(); at += sizeof(FinishedBlock)) {
      FinishedBlock block;
      std::memcpy(&block, message.data() + at, sizeof block);
      block.process = static_cast<uint32_t>(pieces.size());
      blocks.push_back(block);
    }
    pieces.emplace_back(message.substr(0, end));
  }
}

Bytes read_piece(const fs::path& pieces, const FinishedBlock& block) {
  const FileDescriptor fd = open_file("open", pieces, O_RDONLY);
  Bytes out(block.packed_size);
  for (size_t done = 0; done < out.size();) {
    const auto at = static_cast<off_t>(block.packed_offset + done);
    const ssize_t got = retried([&] { return ::pread(fd.get(), out.data() + done, out.size() - done, at); });
    if (got <= 0) fail(Errc::io, "cannot read '{}' at {}: it ends there", pieces.string(), at);
    done += static_cast<size_t>(got);
  }
  return out;
}

}  // namespace cbk
