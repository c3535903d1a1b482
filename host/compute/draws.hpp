// The random numbers of a computation that is done twice: the second time they are those of the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace cbk::compute {

class Draws {
 public:
  /// From now on the random tensors that were drawn are drawn again, in their order.
  void repeat() {
    next_ = 0;
    repeats_ = true;
  }

  /// Where the seed of the next random tensor is kept, and whether it is there already. A recorded step fills
  /// it in each replay.
  std::pair<std::shared_ptr<uint64_t>, bool> next() {
    if (repeats_ && next_ < seeds_.size()) return {seeds_[next_++], true};
    seeds_.push_back(std::make_shared<uint64_t>(0));
    return {seeds_.back(), false};
  }

 private:
  std::vector<std::shared_ptr<uint64_t>> seeds_;
  size_t next_ = 0;
  bool repeats_ = false;
};

}  // namespace cbk::compute
