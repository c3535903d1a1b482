// The memory of a variable: aligned, writable, counted. Shared by views; not thread-safe (kernels that run in
// parallel write disjoint parts).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace cbk::compute {

inline constexpr size_t buffer_alignment = 64;

class Buffer {
 public:
  /// Own memory, uninitialised.
  static std::shared_ptr<Buffer> allocate(uint64_t size);
  /// Without memory until the program with this number assigns it.
  static std::shared_ptr<Buffer> planned(uint64_t size, uint64_t program);

  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  [[nodiscard]] std::byte* data() const { return memory_; }
  [[nodiscard]] uint64_t size() const { return size_; }
  [[nodiscard]] bool has_memory() const { return memory_ != nullptr || size_ == 0; }
  /// Whether the program will assign memory and a value.
  [[nodiscard]] bool is_pending_in(uint64_t program) const { return !has_memory() && program_ == program; }

  /// Memory of a program's arena, which must live as long as this buffer is read.
  void place(std::shared_ptr<std::byte> arena, uint64_t offset);
  /// The memory is used for another buffer again: reading is an error.
  void displace();
  /// Only the kernels of a program read it from now on: its memory is reused for other values.
  void make_transient() { is_transient_ = true; }
  /// Whether the values can be read now.
  [[nodiscard]] bool has_values() const { return has_memory() && !is_transient_; }

  /// Marks a weight or an optimizer's state: it leaves the CSX only in checkpoints.
  void mark_weight() { is_weight_ = true; }
  [[nodiscard]] bool is_weight() const { return is_weight_; }

  /// How often it was written in place: values saved for a gradient must not have changed since.
  [[nodiscard]] uint64_t version() const { return version_; }
  void mark_written() { ++version_; }
  /// How often a gradient was recorded for a write in place.
  [[nodiscard]] uint64_t rewrites() const { return rewrites_; }
  void mark_rewritten() { ++rewrites_; }

  struct Count {
    uint64_t live_bytes = 0;
    uint64_t allocations = 0;  // since the start
  };
  static Count count();

 private:
  Buffer(uint64_t size, uint64_t program);
  std::byte* memory_ = nullptr;
  uint64_t size_;
  uint64_t version_ = 0, rewrites_ = 0;
  uint64_t program_;  // 0: it has memory of its own
  bool is_transient_ = false, is_weight_ = false;
  std::shared_ptr<std::byte> arena_;
};

using BufferPtr = std::shared_ptr<Buffer>;

/// The error for a tensor that was made inside a step or formula that has ended.
[[noreturn]] void fail_without_values();

/// Aligned memory for an arena, counted like a buffer's.
std::shared_ptr<std::byte> allocate_arena(uint64_t size);

}  // namespace cbk::compute
