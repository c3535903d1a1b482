// An HDF5 file at its own level, for looking at: what is stored, how and where, without any checkpoint's
// meaning.
#pragma once

#include "host/base/file.hpp"
#include "host/value/value.hpp"

namespace cbk::hdf5 {

/// A dict: attributes (dict), datasets (list of dicts: name, shape (list, or none for a null dataspace),
/// dtype, chunks (list or none), filters (list of ids), attributes (dict), offset (int, or none where there
/// is no one place), stored (bytes), object (the address: two names with one address are hard links)). A soft
/// or external link is a dict of name and link.
Value inspect(const fs::path& path);

}  // namespace cbk::hdf5
