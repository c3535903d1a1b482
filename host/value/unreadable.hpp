// What a checkpoint lists and cannot read: a filter that is not supported, a link to nowhere.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host/value/value.hpp"

namespace cbk {

/// The type of the object that `unreadable` makes; its repr is `why`.
inline constexpr std::string_view unreadable_type = "unreadable";

/// The place of a value that cannot be read; `why` may name it, and is all that is known. A tensor
/// whose bytes alone cannot be read is a tensor (`unreadable_storage`).
Value unreadable(std::string why);

/// A warning for each value that cannot be read, by its path; of many, the first ones and how many more.
std::vector<std::string> unreadable_warnings(const Value& root);

/// Fails when the tree has such values, or tensors made of bytes that cannot be read; the message names all
/// of them.
void refuse_unreadable(const Value& root);

}  // namespace cbk
