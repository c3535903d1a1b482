// The file of each tensor in a checkpoint of several files, if it is chosen by name.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

namespace cbk {

/// Numbers of files by the names of tensors. Other tensors are in a last file.
using ShardsByName = std::unordered_map<std::string, uint64_t>;

/// The file of each tensor, counted from 0 without gaps: a file without a tensor is left out.
std::vector<size_t> shards_by_name(const std::vector<std::string>& names, const ShardsByName& shards);

}  // namespace cbk
