// The number of columns that a text takes in a terminal.
#pragma once

#include <cstddef>
#include <string_view>

namespace cbk {

/// Wide (East Asian) characters take two columns, combining ones none, invalid bytes one. For text that
/// `shown` returned.
size_t columns_of(std::string_view text);

}  // namespace cbk
