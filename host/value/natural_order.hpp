// The order of a listing: "layers.2" before "layers.10", everything else as in the file.
#pragma once

#include <vector>

#include "host/value/leaf_rows.hpp"

namespace cbk {

/// The rows so that keys of one parent that differ only in a number at their end follow these numbers.
/// Writers that sort keys as texts put 10 before 2; other orders, such as that of a model, are kept.
std::vector<size_t> natural_order(const LeafRows& rows);

}  // namespace cbk
