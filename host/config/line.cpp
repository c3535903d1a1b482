#include <yaml-cpp/yaml.h>

#include "host/base/file.hpp"
#include "host/config/config.hpp"

namespace cbk {
namespace {

/// The line of an entry and the entry itself; nothing if the node has no such entry.
std::optional<std::pair<int64_t, YAML::Node>> entry_of(const YAML::Node& node, const std::string& key) {
  if (node.IsMap()) {
    for (auto entry = node.begin(); entry != node.end(); ++entry) {
      const YAML::Node name = entry->first;
      const YAML::Node value = entry->second;
      if (name.IsScalar() && name.Scalar() == key) return std::pair(name.Mark().line + 1LL, value);
    }
  } else if (node.IsSequence()) {
    size_t i = 0;
    for (auto entry = node.begin(); entry != node.end(); ++entry) {
      const YAML::Node item = *entry;
      if (std::to_string(i++) == key) return std::pair(item.Mark().line + 1LL, item);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> line_of_field(const fs::path& path, std::span<const std::string> keys) {
  std::optional<int64_t> line;
  YAML::Node at;
  try {
    at.reset(YAML::Load(read_file(path, 8ULL << 20)));
  } catch (const YAML::Exception&) {
    return std::nullopt;  // JSON that is not YAML
  }
  for (const std::string& key : keys) {
    auto found = entry_of(at, key);
    if (!found) break;
    line = found->first;
    at.reset(found->second);
  }
  return line;
}

}  // namespace cbk
