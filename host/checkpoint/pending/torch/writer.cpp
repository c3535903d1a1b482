// Until host/formats/torch/writer.cpp is there; CMakeLists.txt leaves this file out then.
#include "host/formats/torch/writer.hpp"

namespace cbk::torch {

std::unique_ptr<Writer> make_writer(const Value& /*root*/, const fs::path& /*target*/, bool /*overwrite*/) {
  fail(Errc::unsupported, "this build cannot write torch files");
}

}  // namespace cbk::torch
