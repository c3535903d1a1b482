#include "host/tensor/checked_storage.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "host/base/interrupt.hpp"
#include "host/tensor/packed_storage.hpp"

namespace cbk {
namespace {

constexpr size_t most_runs = 4096;
constexpr uint64_t checked_size = 256 << 10;

/// A checkpoint may have 100,000 storages, but only a few are read at a time, so they share some locks. A
/// thread that holds one takes no second one.
std::mutex& lock_of(const void* storage) {
  static std::array<std::mutex, 64> locks;
  constexpr size_t smallest_storage = 64;
  return locks[reinterpret_cast<uintptr_t>(storage) / smallest_storage % locks.size()];
}

class CheckedStorage final : public PackedStorage {
 public:
  CheckedStorage(StoragePtr bytes, ExpectedChecksum expected)
      : bytes_(std::move(bytes)), expected_(std::move(expected)) {}

  [[nodiscard]] uint64_t size() const override { return bytes_->size(); }
  [[nodiscard]] uint64_t stored_size() const override { return cbk::stored_size(*bytes_); }
  void each_piece(const VisitPiece& visit) const override { cbk::each_piece(*bytes_, visit); }
  /// A reader with a view of all bytes could not report which it read.
  [[nodiscard]] ByteView view() const override { return expected_.is_strict ? ByteView() : bytes_->view(); }

  void read(uint64_t offset, std::span<std::byte> out) const override {
    bytes_->read(offset, out);
    if (state_ != State::following || out.empty()) return;
    const uint32_t crc = extended(expected_.kind, 0, out);
    const std::lock_guard lock(lock_of(this));
    if (state_ == State::following) note({offset, out.size(), crc});
  }

  void verify() const override {
    if (expected_.is_strict) verify_whole();
  }

  void verify_whole() const override {
    if (state_ == State::good) return;
    const std::lock_guard lock(lock_of(this));
    if (state_ != State::good) verify_all();
  }

  void expect() const noexcept override { bytes_->expect(); }
  void drop(uint64_t offset, uint64_t length) const noexcept override { bytes_->drop(offset, length); }
  [[nodiscard]] Place place() const override { return bytes_->place(); }
  [[nodiscard]] std::optional<FileRange> file_range() const override {
    return expected_.is_strict ? std::nullopt : bytes_->file_range();
  }
  void add_files(SourceFiles& files) const override { bytes_->add_files(files); }
  [[nodiscard]] std::optional<uint32_t> crc32() const override {
    return expected_.kind == Checksum::crc32 ? std::optional(expected_.value) : std::nullopt;
  }

 private:
  /// Whether the ranges read are tracked, no longer tracked, or verified as a whole.
  enum class State : uint8_t { following, lost, good };
  struct Run {
    uint64_t offset;
    uint64_t size;
    uint32_t crc;
    [[nodiscard]] uint64_t end() const { return offset + size; }
  };

  /// Joins a run with those beside it; overlapping or too many runs are not tracked further.
  void note(Run run) const {
    if (run.size == size()) return decide(run.crc);
    if (!runs_) runs_ = std::make_unique<Runs>();
    auto next = runs_->lower_bound(run.offset);
    auto before = next == runs_->begin() ? runs_->end() : std::prev(next);
    const bool overlaps = (next != runs_->end() && next->second.offset < run.end()) ||
                          (before != runs_->end() && before->second.end() > run.offset);
    if (overlaps || runs_->size() >= most_runs) {
      runs_.reset();
      state_ = State::lost;
      return;
    }
    if (next != runs_->end() && next->second.offset == run.end()) {
      run = joined(run, next->second);
      runs_->erase(next);
    }
    if (before != runs_->end() && before->second.end() == run.offset) {
      run = joined(before->second, run);
      runs_->erase(before);
    }
    if (run.size == size()) return decide(run.crc);
    runs_->emplace(run.offset, run);
  }

  [[nodiscard]] Run joined(const Run& first, const Run& second) const {
    return {first.offset, first.size + second.size,
            combined(expected_.kind, first.crc, second.crc, second.size)};
  }

  void verify_all() const {
    uint32_t crc = 0;
    Bytes block(std::min(checked_size, size()));
    for (uint64_t offset = 0; offset < size(); offset += block.size()) {
      const std::span<std::byte> part(block.data(), std::min<uint64_t>(block.size(), size() - offset));
      bytes_->read(offset, part);
      check_interrupt();
      crc = extended(expected_.kind, crc, part);
    }
    decide(crc);
  }

  void decide(uint32_t crc) const {
    runs_.reset();
    if (crc != expected_.value) {
      const Place place = bytes_->place();
      fail(Errc::format,
           "{} {} is damaged: its {} bytes at byte {} of '{}' do not have the checksum of the {}",
           expected_.what, quote(expected_.name), size(), place.offset,
           fs::path(place.file).filename().string(), expected_.teller);
    }
    state_ = State::good;
  }

  StoragePtr bytes_;
  const ExpectedChecksum expected_;
  mutable std::atomic<State> state_{State::following};
  using Runs = std::map<uint64_t, Run>;  // not adjacent, by their offsets
  mutable std::unique_ptr<Runs> runs_;   // what was read
};

}  // namespace

StoragePtr checked_storage(StoragePtr bytes, ExpectedChecksum expected) {
  return std::make_shared<CheckedStorage>(std::move(bytes), std::move(expected));
}

}  // namespace cbk
