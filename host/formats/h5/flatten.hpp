// A tree as its structure and its leaves with dotted keys, for the H5 formats.
#pragma once

#include <string>
#include <vector>

#include <deque>

#include "host/formats/h5/tree_spec.hpp"

namespace cbk::h5 {

struct FlatLeaf {
  std::string key;
  Value value;
};

struct FlatTree {
  TreeSpec spec;
  std::deque<FlatLeaf> leaves;  // there may be 100,000, and whoever takes them frees them
  std::vector<std::string> warnings;
};

struct FlattenOptions {
  bool sets_are_containers = false;  // and deques; otherwise both are leaves
  size_t container_cost = 1;         // how many values a container counts for: memory of its structure
};

/// Errors: a root that is a leaf, keys that JSON cannot hold, two leaves with one dotted key, named tuples,
/// and more than 65,536 values and containers besides tensors (`unsupported`). Each becomes an object or an
/// attribute with a thousand bytes of structures, and reading the file would take hours, or more memory than
/// there is.
FlatTree flatten(const Value& root, const FlattenOptions& options);

}  // namespace cbk::h5
