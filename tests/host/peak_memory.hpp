// How much more memory a piece of work takes at its peak than there was before it.
#pragma once

#include <malloc.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace cbk {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool memory_is_measurable = false;  // what is freed stays for a while, or memory has shadows
#else
inline constexpr bool memory_is_measurable = true;
#endif

class PeakMemory {
 public:
  PeakMemory() {
    malloc_trim(0);
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
    before_ = kilobytes("VmRSS:");
  }
  /// Bytes since this was made.
  [[nodiscard]] uint64_t growth() const {
    const uint64_t peak = kilobytes("VmHWM:");
    return memory_is_measurable && peak > before_ ? (peak - before_) * 1024 : 0;
  }

 private:
  static uint64_t kilobytes(const std::string& name) {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      uint64_t number = 0;
      if (word == name && status >> number) return number;
    }
    return 0;
  }

  uint64_t before_ = 0;
};

}  // namespace cbk
