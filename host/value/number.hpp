// Numbers as text, the way Python writes them.
#pragma once

#include <string>

namespace cbk {

/// Python's repr: the shortest digits that read back as the same number ("1.0", "1e-05", "1e+16", "inf",
/// "nan").
std::string float_repr(double value);

}  // namespace cbk
