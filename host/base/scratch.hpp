// Reusable temporary buffers: a small stack of blocks for each thread, so that blocks cost no page faults.
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

/// Frees the buffers that this thread keeps.
void release_scratch() noexcept;

}  // namespace cbk
