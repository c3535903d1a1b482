// What a checkpoint lists and cannot read: a filter that is not supported, a link to nowhere.
#pragma once

#include <string>

#include "host/value/value.hpp"

namespace cbk {

/// Stands for a value of which nothing is known but `why` it cannot be read, which names it. A tensor whose
/// bytes alone cannot be read is a tensor (`unreadable_storage`).
Value unreadable(std::string why);

/// Fails when the tree has such values, or tensors made of bytes that cannot be read; the message names all
/// of them.
void refuse_unreadable(const Value& root);

}  // namespace cbk
