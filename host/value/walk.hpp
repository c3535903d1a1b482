// Walking a tree: its leaves in order, with their dotted paths.
#pragma once

#include <functional>
#include <string>

#include "host/value/value.hpp"

namespace cbk {

constexpr size_t max_tree_depth = 500;
/// A few shared lists can describe many more.
constexpr size_t max_tree_leaves = 10'000'000;

/// "model.layers.0.weight"; "" if the root is a leaf.
using LeafVisitor = std::function<void(const std::string& path, const Value& leaf)>;

/// All leaves of `root` in order; an empty container counts as one, a record is a container of its
/// attributes. A container that contains itself, or nesting deeper than `max_tree_depth`, is a `value` error,
/// and so are more leaves than `max_tree_leaves`.
void each_leaf(const Value& root, const LeafVisitor& visit);

/// A copy of the containers all the way down; tensors, bytes and objects are shared. Shared nodes stay
/// shared.
Value deep_copy(const Value& value);

/// Calls `visit` once with every dict and sequence of a tree, inside records, too; it may be of any depth.
void each_container(const Value& root,
                    const std::function<void(const Value& container, Edits& edits)>& visit);

/// Makes all containers of a tree refuse edits.
void make_read_only(const Value& root);

}  // namespace cbk
