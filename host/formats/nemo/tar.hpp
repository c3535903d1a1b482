// The members of a tar archive (FORMAT.md). A pure function of the bytes.
#pragma once

#include <string>
#include <vector>

#include "host/base/bytes.hpp"

namespace cbk::nemo {

struct Member {
  std::string name;
  uint64_t offset = 0;  // of the content
  uint64_t size = 0;
};

/// The regular files in an archive, in its order. Errors: `format`, with the offset of the header.
std::vector<Member> members_of(ByteView archive);

}  // namespace cbk::nemo
