// A hash of text that an attacker cannot aim at: SipHash-1-3 (Aumasson and Bernstein, 2012) with a secret of
// this process. For every table whose keys come from a file. Thread-safe.
#pragma once

#include <cstddef>
#include <string_view>

namespace cbk {

struct KeyedHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const noexcept;
};

}  // namespace cbk
