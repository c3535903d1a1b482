// Tensors as NumPy's array files and archives (FORMAT.md), and as bytes alone.
#pragma once

#include "host/formats/writer.hpp"

namespace cbk::npy {

/// The tree has one tensor. Errors: `value` of a tree with more or fewer, or with other values; `dtype` of
/// what NumPy lacks.
std::unique_ptr<ShardWriter> make_writer(const Value& root, const fs::path& target, bool overwrite);

/// Any number of tensors as an archive of array files, stored. Errors: as above, but for their number.
std::unique_ptr<ShardWriter> make_archive_writer(const Value& root, const fs::path& target, bool overwrite);

/// The elements of one tensor, little-endian in C order, without a header.
std::unique_ptr<ShardWriter> make_raw_writer(const Value& root, const fs::path& target, bool overwrite);

}  // namespace cbk::npy
