// Writes format 0.4, and flat files of variables, which are the same datasets without a tree.
#pragma once

#include <memory>

#include "host/formats/writer.hpp"

namespace cbk::h5 {

std::unique_ptr<ShardWriter> make_writer_v04(const Value& root, const fs::path& target,
                                             const WriteOptions& options);
std::unique_ptr<ShardWriter> make_flat_writer(const Value& root, const fs::path& target,
                                              const WriteOptions& options);

}  // namespace cbk::h5
