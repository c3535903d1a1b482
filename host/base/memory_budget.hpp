// The memory that the content of files may take. The sizes in a file are not trusted: readers charge memory
// before they allocate it, so that a small file cannot demand much.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace cbk {

/// A share for every checkpoint, and more for each byte of its files. It leaves room for what a command makes
/// from the content (lists, texts, output): a command as a whole may take 100 MB and 4 times the files' size.
/// Thread-safe.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t file_size) { add_file(file_size); }
  /// The rest of another budget, spent separately.
  MemoryBudget(const MemoryBudget& other) : files_(other.files_.load()), spent_(other.spent_.load()) {}
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  /// Adds a file of the checkpoint.
  void add_file(uint64_t size) { files_ += size; }
  /// The bytes of all files.
  [[nodiscard]] uint64_t file_size() const { return files_; }
  [[nodiscard]] uint64_t limit() const;
  [[nodiscard]] uint64_t left() const;
  /// Errors: `format`, if less is left; then nothing is charged.
  void charge(uint64_t bytes);
  void refund(uint64_t bytes) { spent_ -= bytes; }
  [[noreturn]] void fail_beyond() const;

 private:
  std::atomic<uint64_t> files_{0};
  std::atomic<uint64_t> spent_{0};
};

/// Shared by the files of a checkpoint, and by objects that read parts of them later.
using MemoryPtr = std::shared_ptr<MemoryBudget>;

/// `memory`; unset: a budget of its own for a file of this size.
inline MemoryPtr or_own(MemoryPtr memory, uint64_t file_size) {
  return memory ? std::move(memory) : std::make_shared<MemoryBudget>(file_size);
}

/// A charge that ends with its scope.
class MemoryLoan {
 public:
  explicit MemoryLoan(MemoryBudget& budget, uint64_t bytes = 0) : budget_(&budget) { grow(bytes); }
  MemoryLoan(MemoryLoan&& other) noexcept : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryLoan& operator=(MemoryLoan&&) = delete;
  ~MemoryLoan() { budget_->refund(bytes_); }
  void grow(uint64_t bytes) {
    budget_->charge(bytes);
    bytes_ += bytes;
  }

 private:
  MemoryBudget* budget_;
  uint64_t bytes_ = 0;
};

}  // namespace cbk
