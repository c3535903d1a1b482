// Until host/formats/h5/writer.cpp is there; CMakeLists.txt leaves this file out then.
#include "host/formats/h5/writer.hpp"

namespace cbk::h5 {

std::unique_ptr<Writer> make_writer(const Value& /*root*/, const fs::path& /*target*/,
                                    const WriteOptions& /*options*/) {
  fail(Errc::unsupported, "this build cannot write HDF5 files");
}

}  // namespace cbk::h5
