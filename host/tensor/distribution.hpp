// The distribution of numbers: counts of ranges of values, for quantiles and histograms of tensors of any
// size.
#pragma once

#include <cstdint>
#include <vector>

namespace cbk {

/// Numbers from `low` up to, but without, `high`; if both are equal, numbers of that value.
struct Bin {
  double low = 0;
  double high = 0;
  int64_t count = 0;
};

/// counts[i] numbers are in [edges[i], edges[i + 1]), in the last bin also those equal to the last edge.
struct Histogram {
  std::vector<double> edges;
  std::vector<int64_t> counts;
};

class Distribution {
 public:
  Distribution() = default;
  /// Bins in ascending order, without empty ones; the first one begins at the least number and the last one
  /// ends at the largest.
  explicit Distribution(std::vector<Bin> bins) : bins_(std::move(bins)) {}

  [[nodiscard]] const std::vector<Bin>& bins() const { return bins_; }
  [[nodiscard]] int64_t count() const;

  /// The numbers below which the `shares` of all numbers are (0 to 1, ascending or not), like NumPy's linear
  /// quantiles.
  /// Exact if bins are single values, otherwise off by less than the width of a bin. Empty without numbers.
  /// Errors: `value` for a share that is not in [0, 1].
  [[nodiscard]] std::vector<double> quantiles(const std::vector<double>& shares) const;

  /// At most `most` bins of about equal width. An edge within a bin of the distribution moves to its nearer
  /// end, so the counts are exact. Empty without numbers. Errors: `value` if `most` is below 1.
  [[nodiscard]] Histogram histogram(int64_t most) const;

 private:
  /// The number at a position in ascending order.
  [[nodiscard]] double at(const std::vector<int64_t>& ends, int64_t place) const;

  std::vector<Bin> bins_;
};

}  // namespace cbk
