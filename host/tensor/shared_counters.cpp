#include "host/tensor/shared_counters.hpp"

#include <algorithm>
#include <limits>

namespace cbk {

std::unique_ptr<SharedCounters::Set::Counters> SharedCounters::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return std::make_unique<Set::Counters>();
  auto set = std::move(free_.back());
  free_.pop_back();
  return set;
}

void SharedCounters::give_back(std::unique_ptr<Set::Counters> set, int64_t count) {
  const std::lock_guard lock(mutex_);
  set->added += count;
  if (set->added > std::numeric_limits<int32_t>::max()) collect(*set);  // before a counter can overflow
  free_.push_back(std::move(set));
}

const std::vector<int64_t>& SharedCounters::totals() {
  for (const auto& set : free_) collect(*set);
  return totals_;
}

void SharedCounters::collect(Set::Counters& set) {
  for (size_t i = 0; i < counter_count; ++i) totals_[i] += set.counters[i];
  std::fill(set.counters.begin(), set.counters.end(), 0);
  set.added = 0;
}

}  // namespace cbk
