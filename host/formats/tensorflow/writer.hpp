// A dict of tensors as a TensorFlow checkpoint (Saver V2).
#pragma once

#include <memory>

#include "host/formats/writer.hpp"

namespace cbk::tensorflow {

/// `target`: the prefix, or the file `<prefix>.index`. The data is written to files of at most
/// `options.shard_size` bytes (larger tensors get one of their own), or to a single one. The data files get
/// their names first, then the index, so that the checkpoint is there as a whole or not at all; the folder's
/// state file `checkpoint` names it last. Data files without an index, which a killed run leaves, are
/// replaced. Errors: `value` for whatever is not a tensor, `dtype` for tensors that the format has no number
/// for, `exists` unless `options.overwrite`.
std::unique_ptr<Writer> make_writer(const Value& root, const fs::path& target, const WriteOptions& options);

}  // namespace cbk::tensorflow
