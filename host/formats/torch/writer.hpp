// A Value tree as a torch zip archive, streamed.
//
// One storage of the source stays one storage: views keep their strides and stay shared, and tied leaves stay
// one tensor. Unused parts of a storage are left out if they are more than half of it.
#pragma once

#include <memory>

#include "host/formats/writer.hpp"

namespace cbk::torch {

/// Errors: `value` for values that a pickle cannot hold, `exists` for a target that exists, unless
/// `overwrite`.
/// The archive's top folder is named after the target's stem.
std::unique_ptr<ShardWriter> make_writer(const Value& root, const fs::path& target,
                                         const WriteOptions& options);

}  // namespace cbk::torch
