// Writes format 0.5.
#pragma once

#include <memory>

#include "host/formats/writer.hpp"

namespace cbk::h5 {

std::unique_ptr<ShardWriter> make_writer_v05(const Value& root, const fs::path& target,
                                             const WriteOptions& options);

}  // namespace cbk::h5
