// What a tree holds besides the elements of its tensors, as one short text.
#pragma once

#include <string>

#include "host/value/value.hpp"

namespace cbk {

/// SHA-256 of all paths in order, with the values of the leaves, and dtypes and shapes in place of elements.
std::string values_digest(const Value& root);

}  // namespace cbk
