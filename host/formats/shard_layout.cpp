#include "host/formats/shard_layout.hpp"

#include <limits>
#include <map>

namespace cbk {

std::vector<size_t> shards_by_name(const std::vector<std::string>& names, const ShardsByName& shards) {
  constexpr uint64_t last = std::numeric_limits<uint64_t>::max();
  std::vector<uint64_t> wanted;
  std::map<uint64_t, size_t> numbers;  // in their order
  for (const std::string& name : names) {
    const auto found = shards.find(name);
    wanted.push_back(found == shards.end() ? last : found->second);
    numbers.try_emplace(wanted.back());
  }
  size_t next = 0;
  for (auto& [number, place] : numbers) place = next++;
  std::vector<size_t> out;
  out.reserve(wanted.size());
  for (const uint64_t number : wanted) out.push_back(numbers.at(number));
  return out;
}

}  // namespace cbk
