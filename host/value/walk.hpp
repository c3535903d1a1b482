// Walking a tree: its leaves in order, with their dotted paths.
#pragma once

#include <functional>
#include <string>

#include "host/value/value.hpp"

namespace cbk {

/// "model.layers.0.weight"; "" when the root is a leaf.
using LeafVisitor = std::function<void(const std::string& path, const Value& leaf)>;

/// All leaves of `root` in order; an empty container counts as one. A container that holds itself, or nesting
/// deeper than 500, is a `value` error, and so are more than 10 million leaves (a few shared lists can say
/// that).
void each_leaf(const Value& root, const LeafVisitor& visit);

/// A copy of the containers all the way down; tensors, bytes and objects are shared. What was one node stays
/// one node.
Value deep_copy(const Value& value);

}  // namespace cbk
