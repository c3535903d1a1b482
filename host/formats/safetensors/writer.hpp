// A dict of tensors as a safetensors file, in the layout of the reference writer.
#pragma once

#include <memory>

#include "host/formats/writer.hpp"

namespace cbk::safetensors {

/// `options.metadata`: a dict of texts, or none, which becomes { format = "pt" }. Errors: `value` for
/// whatever is not a tensor or text, `dtype` for tensors that the format has no name for, `exists` for an
/// existing target unless `overwrite`.
std::unique_ptr<ShardWriter> make_writer(const Value& root, const fs::path& target,
                                         const WriteOptions& options);

}  // namespace cbk::safetensors
