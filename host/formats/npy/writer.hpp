// One tensor as NumPy's array file (FORMAT.md).
#pragma once

#include "host/formats/writer.hpp"

namespace cbk::npy {

/// The tree has one tensor. Errors: `value` of a tree with more or fewer, or with other values; `dtype` of
/// what NumPy lacks.
std::unique_ptr<ShardWriter> make_writer(const Value& root, const fs::path& target, bool overwrite);

}  // namespace cbk::npy
