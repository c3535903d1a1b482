// A low-level view of an HDF5 file: what is stored, how and where, without the meaning for checkpoints.
#pragma once

#include "host/base/file.hpp"
#include "host/value/value.hpp"

namespace cbk::hdf5 {

/// A dict: attributes (dict), datasets (list of dicts: name, shape (list, or none for a null dataspace),
/// dtype, chunks (list or none), filters (list of ids), attributes (dict), offset (int, or none if there is
/// no single place), stored (bytes), object (the address: two names with one address are hard links)). A soft
/// or external link is a dict of name and link.
Value inspect(const fs::path& path);

}  // namespace cbk::hdf5
