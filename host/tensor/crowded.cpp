#include "host/tensor/crowded.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "host/base/interrupt.hpp"
#include "host/base/parallel.hpp"
#include "host/base/scratch.hpp"
#include "host/tensor/found_moments.hpp"
#include "host/tensor/kernels/cast.hpp"
#include "host/tensor/shared_counters.hpp"

namespace cbk {
namespace {

constexpr int64_t most_crowded = 64;  // fewer ranges than this can hold more than their share
constexpr size_t parts_of_range = counter_count / most_crowded;

/// A range with counted parts.
struct Crowded {
  std::vector<double> edges;  // ascending; one more than parts
  bool has_end = false;       // a number that is the last edge belongs to it

  Crowded(const Bin& bin, bool is_last) : edges(parts_of_range + 1), has_end(is_last) {
    for (size_t i = 0; i < parts_of_range; ++i) {
      edges[i] = std::lerp(bin.low, bin.high, static_cast<double>(i) / parts_of_range);
    }
    edges.back() = bin.high;
  }

  [[nodiscard]] bool holds(double number) const {
    return number >= edges.front() && (number < edges.back() || (has_end && number == edges.back()));
  }

  [[nodiscard]] size_t part_of(double number) const {
    const double width = edges.back() - edges.front();
    auto part = static_cast<size_t>((number - edges.front()) / width * parts_of_range);
    part = std::min(part, parts_of_range - 1);
    // The quotient is rounded, the edges decide.
    while (number < edges[part]) --part;
    while (part + 1 < parts_of_range && number >= edges[part + 1]) ++part;
    return part;
  }
};

std::vector<Crowded> crowded_of(const Distribution& distribution) {
  const int64_t count = distribution.count();
  const std::vector<Bin>& bins = distribution.bins();
  std::vector<Crowded> out;
  for (const Bin& bin : bins) {
    if (bin.low < bin.high && bin.count > count / most_crowded) out.emplace_back(bin, &bin == &bins.back());
  }
  return out;
}

/// Zeros have a separate bin.
void count_parts(std::span<const double> numbers, const std::vector<Crowded>& ranges, uint32_t* counters) {
  for (const double number : numbers) {
    const auto above =
        std::upper_bound(ranges.begin(), ranges.end(), number,
                         [](double x, const Crowded& range) { return x < range.edges.front(); });
    if (above == ranges.begin() || number == 0) continue;
    const Crowded& range = *(above - 1);
    const auto place = static_cast<size_t>(above - 1 - ranges.begin());
    if (range.holds(number)) ++counters[place * parts_of_range + range.part_of(number)];
  }
}

std::vector<int64_t> counts_of_parts(const Tensor& tensor, const std::vector<Crowded>& ranges) {
  const auto itemsize = static_cast<int64_t>(size_of(tensor.dtype()));
  SharedCounters counters;
  parallel_for((tensor.numel() + part_size - 1) / part_size, [&](int64_t part) {
    const int64_t end = std::min((part + 1) * part_size, tensor.numel());
    const SharedCounters::Set set(counters, end - part * part_size);
    Scratch raw(static_cast<size_t>(read_size * itemsize));
    std::vector<double> numbers;
    for (int64_t begin = part * part_size; begin < end; begin += read_size) {
      check_interrupt();
      const int64_t size = std::min(read_size, end - begin);
      tensor.read(begin, raw.bytes().first(static_cast<size_t>(size * itemsize)));
      numbers.resize(static_cast<size_t>(size));
      cast_elements(tensor.dtype(), raw.data(), DType::float64, reinterpret_cast<std::byte*>(numbers.data()),
                    size);
      count_parts(numbers, ranges, set.counters());
    }
  });
  return counters.totals();
}

}  // namespace

Distribution split_crowded(const Tensor& tensor, Distribution distribution) {
  const std::vector<Crowded> ranges = crowded_of(distribution);
  if (ranges.empty()) return distribution;
  const std::vector<int64_t> counts = counts_of_parts(tensor, ranges);
  std::vector<Bin> out;
  size_t place = 0;
  for (const Bin& bin : distribution.bins()) {
    if (place == ranges.size() || bin.low != ranges[place].edges.front() || bin.low == bin.high) {
      out.push_back(bin);
      continue;
    }
    const std::vector<double>& edges = ranges[place].edges;
    for (size_t i = 0; i < parts_of_range; ++i) {
      const int64_t count = counts[place * parts_of_range + i];
      if (count > 0) out.push_back({edges[i], edges[i + 1], count});
    }
    ++place;
  }
  return Distribution(std::move(out));
}

}  // namespace cbk
