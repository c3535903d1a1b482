// A whole file, or its beginning, into a file under construction, as fast as the system can.
#pragma once

#include <functional>

#include "host/base/staged.hpp"

namespace cbk {

/// Copies the first `length` bytes of `source` to the start of `target`; shares them where the file system
/// can do that. `progress` gets the bytes copied so far. Errors: `io`, `no_space`, `interrupted`.
void copy_file(const MappedFile& source, uint64_t length, StagedFile& target,
               const std::function<void(uint64_t)>& progress = {});

}  // namespace cbk
