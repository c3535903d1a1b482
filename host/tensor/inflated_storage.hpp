// Deflated bytes as a storage that is unpacked while it is read, in a bounded window.
#pragma once

#include <string>

#include "host/base/inflate.hpp"
#include "host/tensor/storage.hpp"

namespace cbk {

/// `packed`, a part of `file`, unpacks to `size` bytes; `what` names it in messages. Reading from front
/// to back, also by several threads close to each other, costs one pass; going back far starts again.
StoragePtr inflated_storage(std::shared_ptr<const MappedFile> file, ByteView packed, Deflated form,
                            uint64_t size, std::string what);

}  // namespace cbk
