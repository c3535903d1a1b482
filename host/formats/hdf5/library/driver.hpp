// How the HDF5 library reads the checkpoint in cbk-hdf5: from the descriptor that is open already. Its own
// drivers open files by name, which would have to be allowed while it reads the first bytes.
#pragma once

#include <hdf5.h>

namespace cbk::hdf5::library {

/// Makes a file access list open the checkpoint, whatever name is given. `on_new_bytes` is called when bytes
/// are read that were not read since `forget_read`. A negative number if it cannot.
herr_t read_checkpoint_only(hid_t access, void (*on_new_bytes)());
void forget_read();

}  // namespace cbk::hdf5::library
