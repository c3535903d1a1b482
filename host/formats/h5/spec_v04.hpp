// The pickled form of a TreeSpec, in formats 0.1 to 0.4: a `torch.utils._pytree.TreeSpec` as hex text.
#pragma once

#include "host/formats/h5/tree_spec.hpp"

namespace cbk::h5 {

/// The globals of the pickle are compared, never imported. The values that the pickle makes must fit into the
/// rest of `memory`.
TreeSpec parse_spec_v04(std::string_view hex, const MemoryBudget& memory);

std::string to_spec_v04(const TreeSpec& spec);

}  // namespace cbk::h5
