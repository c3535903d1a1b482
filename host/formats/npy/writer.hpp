// Tensors as NumPy's array files and archives (FORMAT.md), and as raw bytes.
#pragma once

#include "host/formats/writer.hpp"

namespace cbk::npy {

/// The tree must have one tensor. Errors: `value` for a tree with more or fewer, or with other values;
/// `dtype` for dtypes that NumPy lacks.
std::unique_ptr<ShardWriter> make_writer(const Value& root, const fs::path& target,
                                         const WriteOptions& options);

/// Any number of tensors as an archive of array files, stored. Errors: as above, except for their number.
std::unique_ptr<ShardWriter> make_archive_writer(const Value& root, const fs::path& target,
                                                 const WriteOptions& options);

/// The elements of one tensor, little-endian in C order, without a header.
std::unique_ptr<ShardWriter> make_raw_writer(const Value& root, const fs::path& target,
                                             const WriteOptions& options);

}  // namespace cbk::npy
