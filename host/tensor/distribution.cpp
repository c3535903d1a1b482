#include "host/tensor/distribution.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "host/base/error.hpp"

namespace cbk {

int64_t Distribution::count() const {
  return std::accumulate(bins_.begin(), bins_.end(), int64_t{0},
                         [](int64_t sum, const Bin& bin) { return sum + bin.count; });
}

double Distribution::at(const std::vector<int64_t>& ends, int64_t place) const {
  if (place == 0) return bins_.front().low;
  if (place == ends.back() - 1) return bins_.back().high;
  const auto found = std::upper_bound(ends.begin(), ends.end(), place);
  const Bin& bin = bins_[static_cast<size_t>(found - ends.begin())];
  if (bin.low == bin.high) return bin.low;
  const double within = static_cast<double>(place - (*found - bin.count)) + 0.5;
  return std::lerp(bin.low, bin.high, within / static_cast<double>(bin.count));
}

std::vector<double> Distribution::quantiles(const std::vector<double>& shares) const {
  std::vector<int64_t> ends;
  for (const Bin& bin : bins_) ends.push_back(bin.count + (ends.empty() ? 0 : ends.back()));
  std::vector<double> out;
  for (const double share : shares) {
    if (!(share >= 0 && share <= 1)) fail(Errc::value, "a quantile must be from 0 to 1, not {}", share);
    if (ends.empty()) continue;
    const double place = share * static_cast<double>(ends.back() - 1);
    const auto below = static_cast<int64_t>(std::floor(place));
    const double low = at(ends, below);
    const double high = at(ends, std::min(below + 1, ends.back() - 1));
    out.push_back(std::lerp(low, high, place - static_cast<double>(below)));
  }
  return out;
}

Histogram Distribution::histogram(int64_t most) const {
  if (most < 1) fail(Errc::value, "a histogram needs at least 1 bin, not {}", most);
  Histogram out;
  if (bins_.empty()) return out;
  const double first = bins_.front().low;
  const double last = bins_.back().high;
  out.edges.push_back(first);
  int64_t waiting = 0;  // numbers since the last edge
  int64_t next = 1;     // the edge that is looked for
  const auto close = [&](double edge) {
    if (edge <= out.edges.back() || edge >= last) return;
    out.edges.push_back(edge);
    out.counts.push_back(waiting);
    waiting = 0;
  };
  const auto wanted = [&] {
    return std::lerp(first, last, static_cast<double>(next) / static_cast<double>(most));
  };
  for (const Bin& bin : bins_) {
    for (; next < most && wanted() <= bin.low; ++next) close(wanted());
    // An edge in the lower half of the bin moves to its beginning, others to its end.
    if (next < most && wanted() - bin.low < bin.high - wanted()) close(bin.low);
    waiting += bin.count;
    bool ends_here = false;
    for (; next < most && wanted() < bin.high; ++next) ends_here = bin.high - wanted() <= wanted() - bin.low;
    if (ends_here) close(bin.high);
  }
  out.edges.push_back(last);
  out.counts.push_back(waiting);
  return out;
}

}  // namespace cbk
