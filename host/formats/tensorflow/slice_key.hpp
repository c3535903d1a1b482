// The keys of the slices of a partitioned variable in the index: name and place, encoded so
// that they sort by both, before all names of variables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cbk::tensorflow {

/// Along one dim: [start, start + length), or all of it.
struct Extent {
  int64_t start = 0;
  std::optional<int64_t> length;
};

std::string slice_key(std::string_view name, const std::vector<Extent>& extents);

/// Slice keys begin with a byte 0, which no name does.
bool is_slice_key(std::string_view key);

/// The name of the variable; nullopt if the key is not well-formed up to there.
std::optional<std::string> name_in_slice_key(std::string_view key);

}  // namespace cbk::tensorflow
