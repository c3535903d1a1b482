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

/// `sets_are_containers`: sets and deques are containers; otherwise both are leaves. Errors: a root that is a
/// leaf, keys that JSON cannot hold, two leaves with one dotted key, named tuples.
FlatTree flatten(const Value& root, bool sets_are_containers);

}  // namespace cbk::h5
