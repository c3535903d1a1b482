// Until host/formats/torch/reader.cpp is there; CMakeLists.txt leaves this file out then.
#include "host/formats/torch/reader.hpp"

namespace cbk::torch {

bool looks_like_torch(ByteView /*head*/) {
  return false;
}

Checkpoint read(std::shared_ptr<const MappedFile> /*file*/, const OpenOptions& /*options*/) {
  fail(Errc::unsupported, "this build cannot read torch files");
}

}  // namespace cbk::torch
