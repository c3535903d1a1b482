// The writer of any format, by the options or by the name of the target.
#pragma once

#include "host/formats/writer.hpp"

namespace cbk {

/// The writer for `target`. Errors: an unknown format or suffix (`usage`), and values that the format cannot
/// hold.
std::unique_ptr<Writer> make_writer(const Value& root, const fs::path& target, const WriteOptions& options);

/// Whether `target` would be an H5 checkpoint with a tree: not flat, not shards.
bool makes_tree(const fs::path& target, const WriteOptions& options);

}  // namespace cbk
