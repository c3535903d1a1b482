// Ends a fuzzer when an input takes more memory than its size allows: what the whole program promises its
// users, without what the program takes anyway.
#pragma once

#include <sanitizer/allocator_interface.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace cbk {

class MemoryBar {
 public:
  /// Of an input in place of a file of so many bytes.
  explicit MemoryBar(uint64_t file_size) {
    static const bool hooks = __sanitizer_install_malloc_and_free_hooks(allocated, freed) != 0;
    if (!hooks) std::abort();
    live_ = 0;
    limit_ = fixed + 4 * file_size;
  }
  MemoryBar(const MemoryBar&) = delete;
  MemoryBar& operator=(const MemoryBar&) = delete;
  ~MemoryBar() { limit_ = INT64_MAX; }

 private:
  static constexpr uint64_t fixed = 80ULL << 20;  // 100 MB less what the program takes

  static void allocated(const volatile void* /*block*/, size_t size) {
    if ((live_ += static_cast<int64_t>(size)) <= limit_) return;
    limit_ = INT64_MAX;
    std::fputs("the input takes more memory than 100 MB and 4 times its size\n", stderr);
    std::abort();
  }
  static void freed(const volatile void* block) {
    if (block != nullptr)
      live_ -= static_cast<int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(block)));
  }

  static inline std::atomic<int64_t> live_{0};
  static inline std::atomic<int64_t> limit_{INT64_MAX};
};

}  // namespace cbk
