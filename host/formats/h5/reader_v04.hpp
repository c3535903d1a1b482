// The leaves of the formats 0.1 to 0.4: the meaning of a dataset and its attributes.
#pragma once

#include "host/formats/checkpoint.hpp"
#include "host/formats/h5/datasets.hpp"

namespace cbk::h5 {

/// The tree; keys that are in the spec but not in the file become None with a warning.
Value read_v04(Datasets& datasets, double version, bool allow_records, std::vector<std::string>& warnings);

}  // namespace cbk::h5
