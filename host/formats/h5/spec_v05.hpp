// The JSON form of a TreeSpec, in format 0.5: `[SHAPE, TREE]`, TREE being JSON text again.
#pragma once

#include "host/formats/h5/tree_spec.hpp"

namespace cbk::h5 {

/// `pair`: [SHAPE, TREE]. The shape is for people; only the tree is used.
TreeSpec parse_spec_v05(const Value& pair, MemoryBudget& memory);

/// The text of both, indented.
std::string to_spec_v05(const TreeSpec& spec);

}  // namespace cbk::h5
