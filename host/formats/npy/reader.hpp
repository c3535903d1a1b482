// NumPy's array files, and archives of them, as checkpoints (FORMAT.md).
#pragma once

#include "host/base/file.hpp"
#include "host/formats/checkpoint.hpp"

namespace cbk::npy {

/// One array, named after the file. Errors: `format`, `dtype`.
Checkpoint read(const std::shared_ptr<const MappedFile>& file, const OpenOptions& options);

/// Whether a zip archive contains arrays: by its first member or, if that is unclear, by its name.
bool looks_like_npz(ByteView head, const fs::path& path);

/// The arrays of an archive (.npz). Members that cannot be read are unreadable values. Errors: `format`,
/// `unsupported`.
Checkpoint read_archive(const std::shared_ptr<const MappedFile>& file, const OpenOptions& options,
                        const MemoryPtr& memory);

}  // namespace cbk::npy
