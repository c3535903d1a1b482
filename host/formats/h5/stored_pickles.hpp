// The pickles that Cerebras H5 files keep for Python objects.
#pragma once

#include "host/formats/h5/container/file.hpp"

namespace cbk::h5 {

/// The value of one, charged to `memory`. Errors: `refused` for what is beyond plain data, as
/// torch::unpickle.
Value unpickle_stored(std::string_view bytes, bool allow_records, MemoryBudget& memory);

/// Reads all pickles of a file that is going to be copied as a file, or changed in place: what cannot be read
/// as data must not be passed on. Errors: as `unpickle_stored`, with the name of the object.
void check_pickles(File& file, bool allow_records);

}  // namespace cbk::h5
