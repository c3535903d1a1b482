// The links of a group: old-style symbol tables, and the link messages and dense links of newer groups.
#pragma once

#include <string>
#include <vector>

#include "host/formats/hdf5/object.hpp"

namespace cbk::hdf5 {

struct Link {
  enum class Kind { hard, soft, external, other };
  std::string name;
  Kind kind = Kind::hard;
  uint64_t address = undefined_address;  // hard: the object; two links with one address are one object
  std::string file;                      // external
  std::string target;                    // soft and external: the path of the object
};

/// All links, in the byte order of their names if the file keeps them like that.
std::vector<Link> read_links(const Image& image, const ObjectHeader& group);

}  // namespace cbk::hdf5
