#include "host/tensor/ranges.hpp"

#include <algorithm>

namespace cbk {
Distribution distribution_of_ranges(const std::vector<int64_t>& counters, const Moments& moments) {
  constexpr size_t zero = counter_count / 2;
  std::vector<Bin> bins;
  const auto add = [&](double low, double high, int64_t count) {
    if (count > 0) bins.push_back({std::max(low, moments.min), std::min(high, moments.max), count});
  };
  for (size_t i = 0; i < counters.size(); ++i) {
    if (counters[i] == 0) continue;
    const double low = counter_begin(i);
    const double high = i + 1 < counter_count ? counter_begin(i + 1) : moments.max;
    if (i == zero) {
      add(0, 0, moments.zeros);
      add(0, high, counters[i] - moments.zeros);
    } else {
      add(low, high, counters[i]);
    }
  }
  return Distribution(std::move(bins));
}

}  // namespace cbk
