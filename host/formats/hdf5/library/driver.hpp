// The file driver of the HDF5 library in cbk-hdf5: it reads the checkpoint from the open descriptor. The
// library's own drivers open files by name, which would have to be allowed while the first bytes are read.
#pragma once

#include <hdf5.h>

namespace cbk::hdf5::library {

/// Makes a file access list open the checkpoint for any name. `on_new_bytes` is called when bytes are read
/// that were not read since `forget_read`. Returns a negative number on failure.
herr_t read_checkpoint_only(hid_t access, void (*on_new_bytes)());
void forget_read();

}  // namespace cbk::hdf5::library
