// Decimal digits in text, in any locale.
#pragma once

namespace cbk {

inline bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace cbk
