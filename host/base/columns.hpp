// How many columns a text takes in a terminal.
#pragma once

#include <cstddef>
#include <string_view>

namespace cbk {

/// Wide (East Asian) characters take two, combining ones none; what is not a character, one. For text that
/// `shown` gave.
size_t columns_of(std::string_view text);

}  // namespace cbk
