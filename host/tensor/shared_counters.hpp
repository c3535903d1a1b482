// Counters that several threads add to: each thread has a set, because sums of counts are the same in any
// order.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "host/tensor/kernels/moments.hpp"

namespace cbk {

class SharedCounters {
 public:
  /// An exclusive set. It is returned at the end of the scope.
  class Set {
   public:
    /// For at most `count` numbers.
    Set(SharedCounters& owner, int64_t count) : owner_(owner), counters_(owner.take()), count_(count) {}
    Set(const Set&) = delete;
    Set& operator=(const Set&) = delete;
    ~Set() { owner_.give_back(std::move(counters_), count_); }
    [[nodiscard]] uint32_t* counters() const { return counters_->counters.data(); }

   private:
    friend class SharedCounters;
    struct Counters {
      std::vector<uint32_t> counters = std::vector<uint32_t>(counter_count);
      int64_t added = 0;
    };

    SharedCounters& owner_;
    std::unique_ptr<Counters> counters_;
    int64_t count_;
  };

  /// The sum of all sets; all must have been returned.
  const std::vector<int64_t>& totals();

 private:
  std::unique_ptr<Set::Counters> take();
  void give_back(std::unique_ptr<Set::Counters> set, int64_t count);
  void collect(Set::Counters& set);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Set::Counters>> free_;
  std::vector<int64_t> totals_ = std::vector<int64_t>(counter_count);
};

}  // namespace cbk
