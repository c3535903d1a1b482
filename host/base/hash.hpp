// A hash of text that resists chosen collisions: SipHash-1-3 (Aumasson and Bernstein, 2012) with a secret of
// this process. For every table with keys from a file. Thread-safe.
#pragma once

#include <cstddef>
#include <string_view>

namespace cbk {

struct KeyedHash {
  using is_transparent = void;
  // Not noexcept, although it never throws: libstdc++'s tables then keep each hash beside its key instead of
  // computing it again at every step.
  size_t operator()(std::string_view text) const;
};

}  // namespace cbk
