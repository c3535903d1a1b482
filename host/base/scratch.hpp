// Temporary buffers that are used again: one small stack of blocks per thread, so that no block costs page
// faults.
#pragma once

#include <cstddef>
#include <span>

namespace cbk {

/// `size` uninitialised bytes until the end of the scope. Nesting is fine; a buffer stays with its thread.
class Scratch {
 public:
  explicit Scratch(size_t size);
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

/// Frees what this thread keeps for later use.
void release_scratch() noexcept;

}  // namespace cbk
