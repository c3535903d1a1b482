// The structure of a checkpoint apart from its leaves: JSON in format 0.5, a pickled TreeSpec before.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host/value/value.hpp"

namespace cbk::h5 {

struct TreeSpec {
  enum class Kind { leaf, dict, ordered, list, tuple, set, deque, named };
  Kind kind = Kind::leaf;
  std::vector<Value> keys;        // dict, ordered: one per child
  std::optional<int64_t> maxlen;  // deque
  std::string type;               // named: the class
  std::vector<TreeSpec> children;
};

/// `pair`: [SHAPE, TREE], TREE being JSON text again.
TreeSpec parse_json_spec(const Value& pair);

/// Hex text of a pickle; its globals are looked at, never imported.
TreeSpec parse_pickle_spec(std::string_view hex);

/// The [SHAPE, TREE] text of format 0.5, indented.
std::string to_json_spec(const TreeSpec& spec);

/// The hex text of format 0.4.
std::string to_pickle_spec(const TreeSpec& spec);

/// The dotted keys of all leaves in order. A key that two leaves share is an error.
std::vector<std::string> leaf_keys(const TreeSpec& spec);

/// The tree with the leaves that `next` gives, in order.
Value build_tree(const TreeSpec& spec, const std::function<Value()>& next);

}  // namespace cbk::h5
