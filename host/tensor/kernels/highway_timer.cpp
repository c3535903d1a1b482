// Highway's library measures its timer for 5 ms whenever it is loaded, for benchmarks that cbk does not use:
// a third of the time to start. The loader uses this function in place of the library's.
#include <cstdint>

namespace hwy::platform {

uint64_t TimerResolution();   // NOLINT(readability-identifier-naming): Highway's name
uint64_t TimerResolution() {  // NOLINT(readability-identifier-naming)
  return 1;
}

}  // namespace hwy::platform
