// Limits the growth of a tree when it is written out: a few shared lists can describe 2^60 values.
#pragma once

#include <cstddef>
#include <unordered_set>

#include "host/base/error.hpp"
#include "host/value/value.hpp"

namespace cbk {

/// Counts the values that a walk reaches again, below containers that it has already visited.
class Unfolding {
 public:
  static constexpr size_t max_repeated = 1'000'000;

  /// Calls `visit`, which goes through a container with `size` values. Errors: `value`, if there are too
  /// many.
  template <typename Visit>
  void enter(const void* identity, size_t size, Visit&& visit) {
    const bool is_again = identity != nullptr && !seen_.insert(identity).second;
    if (is_again) ++depth_;
    if (depth_ > 0) repeated_ += 1 + size;
    if (repeated_ > max_repeated) {
      fail(Errc::value,
           "lists and dicts that are in several places would become more than {} values; "
           "keep each in one place, and refer to it by a name",
           max_repeated);
    }
    visit();
    if (is_again) --depth_;
  }
  template <typename Visit>
  void enter(const Value& container, size_t size, Visit&& visit) {
    enter(container.is_unshared() ? nullptr : container.identity(), size, visit);
  }

 private:
  std::unordered_set<const void*> seen_;
  size_t depth_ = 0;  // of containers that were entered again
  size_t repeated_ = 0;
};

}  // namespace cbk
