// The leaves of format 0.5: JSON metadata in root attributes, data in datasets.
#pragma once

#include "host/formats/checkpoint.hpp"
#include "host/formats/h5/datasets.hpp"

namespace cbk::h5 {

Value read_v05(Datasets& datasets, const hdf5::Attributes& root, bool allow_records);

}  // namespace cbk::h5
