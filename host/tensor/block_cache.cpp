#include "host/tensor/block_cache.hpp"

namespace cbk {

BlockCache& BlockCache::instance() {
  static BlockCache instance;
  return instance;
}

uint64_t BlockCache::new_storage() {
  const std::lock_guard lock(mutex_);
  return ++storages_;
}

BlockCache::Block BlockCache::find(Key key) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(key);
  if (found == places_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->second;
}

void BlockCache::put(Key key, Block block) {
  const std::lock_guard lock(mutex_);
  if (places_.contains(key)) return;
  total_ += cost(block);
  entries_.emplace_front(key, std::move(block));
  places_[key] = entries_.begin();
  while (total_ > limit && entries_.size() > 1) erase(places_.find(entries_.back().first));
}

void BlockCache::forget(uint64_t storage) {
  const std::lock_guard lock(mutex_);
  auto at = places_.lower_bound({storage, 0});
  while (at != places_.end() && at->first.storage == storage) at = erase(at);
}

BlockCache::Places::iterator BlockCache::erase(Places::iterator place) {
  total_ -= cost(place->second->second);
  entries_.erase(place->second);
  return places_.erase(place);
}

}  // namespace cbk
