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

struct Archive {
  std::vector<Member> members;  // the regular files, in their order
  bool has_end = false;         // a block of zeros; without one it may be cut short
};

/// Errors: `format`, with the offset of the header.
Archive read_archive(ByteView bytes);

}  // namespace cbk::nemo
