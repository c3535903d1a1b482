// Values that a checkpoint lists but that cannot be read: a filter that is not supported, a link to nowhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host/value/value.hpp"

namespace cbk {

/// The type of the object that `unreadable` makes; its repr is `why`.
inline constexpr std::string_view unreadable_type = "unreadable";

/// Stands for a value that cannot be read; `why` is all that is known. A tensor with only its bytes
/// unreadable is a tensor (`unreadable_storage`).
Value unreadable(std::string why);

/// A warning for each value that cannot be read, by its path; if there are many, the first ones and the
/// number of others.
std::vector<std::string> unreadable_warnings(const Value& root);

/// Fails if the tree has such values, or tensors made of bytes that cannot be read; the message names all
/// of them.
void refuse_unreadable(const Value& root);

}  // namespace cbk
