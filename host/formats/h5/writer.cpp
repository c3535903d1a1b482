#include "host/formats/h5/writer.hpp"

#include "host/formats/h5/writer_v04.hpp"
#include "host/formats/h5/writer_v05.hpp"

namespace cbk::h5 {

std::unique_ptr<ShardWriter> make_writer(const Value& root, const fs::path& target,
                                         const WriteOptions& options) {
  if (options.h5_version.empty() || options.h5_version == "0.5")
    return make_writer_v05(root, target, options);
  if (options.h5_version == "0.4") return make_writer_v04(root, target, options);
  if (options.h5_version == "flat") return make_flat_writer(root, target, options);
  fail(Errc::usage, "H5 format {} cannot be written; known are 0.5, 0.4 and flat", quote(options.h5_version));
}

}  // namespace cbk::h5
