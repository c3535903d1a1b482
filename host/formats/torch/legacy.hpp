// The stream that torch wrote before 1.6: five pickles, then the storages one after the other. Read only.
#pragma once

#include <memory>

#include "host/base/memory_budget.hpp"
#include "host/formats/checkpoint.hpp"

namespace cbk::torch {

/// The length of the pickle of torch's magic number at the start of `head`, in any protocol; 0 if there is
/// none.
size_t legacy_magic_size(std::string_view head);

Checkpoint read_legacy(std::shared_ptr<const MappedFile> file, const OpenOptions& options, MemoryPtr memory);

}  // namespace cbk::torch
