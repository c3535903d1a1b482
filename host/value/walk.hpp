// Walking a tree: its leaves in order, with their dotted paths.
#pragma once

#include <string>
#include <vector>

#include "host/value/value.hpp"

namespace cbk {

struct Leaf {
  std::string path;  // "model.layers.0.weight"; "" when the root is a leaf
  Value value;
};

/// All leaves of `root` in order; an empty container counts as one. A container that holds itself, or nesting
/// deeper than 500, is a `value` error, and so are more than 10 million leaves (a few shared lists can say
/// that).
std::vector<Leaf> leaves(const Value& root);

/// A copy of the containers all the way down; tensors, bytes and objects are shared. What was one node stays
/// one node.
Value deep_copy(const Value& value);

}  // namespace cbk
