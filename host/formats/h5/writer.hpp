// Writes H5 checkpoints: 0.5 by default, 0.4, and flat files of variables.
#pragma once

#include <memory>

#include "host/formats/writer.hpp"

namespace cbk::h5 {

/// `options.h5_version`: "0.5" (or empty), "0.4", or "flat" (a dict of tensors without structure). Values
/// that the format cannot hold are an error here, naming the key.
std::unique_ptr<ShardWriter> make_writer(const Value& root, const fs::path& target,
                                         const WriteOptions& options);

}  // namespace cbk::h5
