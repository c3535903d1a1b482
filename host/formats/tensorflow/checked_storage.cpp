#include "host/formats/tensorflow/checked_storage.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "host/base/crc32c.hpp"

namespace cbk::tensorflow {
namespace {

constexpr size_t most_runs = 4096;
constexpr uint64_t block_size = 256 << 10;

class CheckedStorage final : public Storage {
 public:
  CheckedStorage(StoragePtr bytes, uint32_t crc, std::string name)
      : bytes_(std::move(bytes)), crc_(crc), name_(std::move(name)) {}

  [[nodiscard]] uint64_t size() const override { return bytes_->size(); }
  // No `view`: whoever could see all bytes would not say which ones were looked at.

  void read(uint64_t offset, std::span<std::byte> out) const override {
    bytes_->read(offset, out);
    if (is_good_.load(std::memory_order_acquire) || out.empty()) return;
    const uint32_t crc = crc32c(out);
    const std::lock_guard lock(mutex_);
    if (!is_good_) note({offset, out.size(), crc});
  }

  void verify() const override {
    if (is_good_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    if (!is_good_) verify_all();
  }

  void drop(uint64_t offset, uint64_t length) const noexcept override { bytes_->drop(offset, length); }
  [[nodiscard]] Place place() const override { return bytes_->place(); }

 private:
  struct Run {
    uint64_t offset;
    uint64_t size;
    uint32_t crc;
    [[nodiscard]] uint64_t end() const { return offset + size; }
  };

  /// Joins a run with those beside it; what overlaps or lies about in too many pieces is read again as a
  /// whole.
  void note(Run run) const {
    auto next = runs_.lower_bound(run.offset);
    auto before = next == runs_.begin() ? runs_.end() : std::prev(next);
    const bool overlaps = (next != runs_.end() && next->second.offset < run.end()) ||
                          (before != runs_.end() && before->second.end() > run.offset);
    if (overlaps || runs_.size() >= most_runs) return verify_all();
    if (next != runs_.end() && next->second.offset == run.end()) {
      run = joined(run, next->second);
      runs_.erase(next);
    }
    if (before != runs_.end() && before->second.end() == run.offset) {
      run = joined(before->second, run);
      runs_.erase(before);
    }
    if (run.size == size()) return decide(run.crc);
    runs_.emplace(run.offset, run);
  }

  static Run joined(const Run& first, const Run& second) {
    return {first.offset, first.size + second.size, crc32c_combine(first.crc, second.crc, second.size)};
  }

  void verify_all() const {
    uint32_t crc = 0;
    Bytes block(std::min(block_size, size()));
    for (uint64_t offset = 0; offset < size(); offset += block.size()) {
      const std::span<std::byte> part(block.data(), std::min<uint64_t>(block.size(), size() - offset));
      bytes_->read(offset, part);
      crc = crc32c(part, crc);
    }
    decide(crc);
  }

  void decide(uint32_t crc) const {
    runs_.clear();
    if (masked_crc32c(crc) != crc_) {
      const Place place = bytes_->place();
      fail(Errc::format,
           "variable {} is damaged: its {} bytes at byte {} of '{}' do not have the checksum of the index",
           quote(name_), size(), place.offset, fs::path(place.file).filename().string());
    }
    is_good_.store(true, std::memory_order_release);
  }

  StoragePtr bytes_;
  uint32_t crc_;
  std::string name_;
  mutable std::atomic<bool> is_good_{false};
  mutable std::mutex mutex_;
  mutable std::map<uint64_t, Run> runs_;  // read, not adjacent, by their offsets
};

}  // namespace

StoragePtr checked_storage(StoragePtr bytes, uint32_t crc, std::string name) {
  return std::make_shared<CheckedStorage>(std::move(bytes), crc, std::move(name));
}

}  // namespace cbk::tensorflow
