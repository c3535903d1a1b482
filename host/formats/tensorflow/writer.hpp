// A dict of tensors as a TensorFlow checkpoint (Saver V2).
#pragma once

#include <memory>

#include "host/formats/writer.hpp"

namespace cbk::tensorflow {

/// `target`: the prefix, or the file `<prefix>.index`. The data is written to files of at most
/// `options.shard_size` bytes (larger tensors get a separate one), or to a single file. The data files get
/// their names first, then the index, so that the checkpoint appears completely or not at all; the folder's
/// state file `checkpoint` names it last. Data files without an index, which a killed run leaves, are
/// replaced. Errors: `value` for values that are not tensors, `dtype` for tensors with a dtype that the
/// format lacks, `exists` unless `options.overwrite`.
std::unique_ptr<Writer> make_writer(const Value& root, const fs::path& target, const WriteOptions& options);

}  // namespace cbk::tensorflow
