#include "host/tensor/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <vector>

#include "host/base/bytes.hpp"
#include "host/base/error.hpp"
#include "host/base/interrupt.hpp"
#include "host/base/parallel.hpp"
#include "host/base/scratch.hpp"
#include "host/tensor/counted.hpp"
#include "host/tensor/crowded.hpp"
#include "host/tensor/expression.hpp"
#include "host/tensor/found_moments.hpp"
#include "host/tensor/kernels/cast.hpp"
#include "host/tensor/kernels/moments.hpp"
#include "host/tensor/ranges.hpp"
#include "host/tensor/shared_counters.hpp"
#include "host/tensor/whole_statistics.hpp"

namespace cbk {
namespace {

constexpr int64_t counted_together = 1 << 12;  // of those; several passes go over them in the first cache

/// The elements as numbers of type T: in place, or converted in `room`.
template <typename T>
std::span<const T> as_numbers(DType dtype, std::span<const std::byte> raw, std::vector<T>& room) {
  constexpr DType as = sizeof(T) == 4 ? DType::float32 : DType::float64;
  const size_t count = raw.size() / size_of(dtype);
  if (dtype == as) return {reinterpret_cast<const T*>(raw.data()), count};
  room.resize(count);
  cast_elements(dtype, raw.data(), as, reinterpret_cast<std::byte*>(room.data()),
                static_cast<int64_t>(count));
  return room;
}

// --- floats

/// The distribution of few elements: each value.
Distribution sorted_values(const Tensor& tensor) {
  const Bytes raw = tensor.to_bytes();
  std::vector<double> room;
  std::vector<double> numbers;
  std::ranges::copy_if(as_numbers<double>(tensor.dtype(), raw, room), std::back_inserter(numbers),
                       [](double number) { return std::isfinite(number); });
  std::sort(numbers.begin(), numbers.end());
  std::vector<Bin> bins;
  for (const double number : numbers) {
    if (bins.empty() || bins.back().low != number) bins.push_back({number, number, 0});
    ++bins.back().count;
  }
  return Distribution(std::move(bins));
}

/// `counters`: null if no distribution is requested.
template <typename T>
Moments part_of_floats(const Tensor& tensor, int64_t begin, int64_t end, uint32_t* counters) {
  const auto itemsize = static_cast<int64_t>(size_of(tensor.dtype()));
  Moments out;
  std::vector<T> room;
  Scratch raw(static_cast<size_t>(std::min(read_size, end - begin) * itemsize));
  for (; begin < end; begin += read_size) {
    check_interrupt();
    const int64_t size = std::min(read_size, end - begin);
    tensor.read(begin, raw.bytes().first(static_cast<size_t>(size * itemsize)));
    for (int64_t at = 0; at < size; at += counted_together) {
      const int64_t count = std::min(counted_together, size - at);
      const auto bytes =
          raw.bytes().subspan(static_cast<size_t>(at * itemsize), static_cast<size_t>(count * itemsize));
      add_numbers(out, as_numbers<T>(tensor.dtype(), bytes, room), least_normal(tensor.dtype()), counters);
    }
  }
  return out;
}

/// `totals`: of numbers other than 0.
Distribution spread_of(const std::vector<int64_t>& totals, const Moments& moments) {
  std::vector<int64_t> ranges(counter_count);
  for (size_t place = 0; place < counter_count; ++place) ranges[place] = totals[counter_at(place)];
  ranges[counter_count / 2] += moments.zeros;
  return distribution_of_ranges(ranges, moments);
}

template <typename T>
Statistics float_statistics(const Tensor& tensor, bool with_distribution) {
  const int64_t parts = (tensor.numel() + part_size - 1) / part_size;
  std::vector<Moments> found(static_cast<size_t>(parts));
  std::optional<SharedCounters> counters;  // half a megabyte, which few elements do not need
  if (with_distribution && tensor.numel() > few_elements) counters.emplace();
  parallel_for(parts, [&](int64_t part) {
    const int64_t begin = part * part_size;
    const int64_t end = std::min(begin + part_size, tensor.numel());
    std::optional<SharedCounters::Set> set;
    if (counters) set.emplace(*counters, end - begin);
    found[static_cast<size_t>(part)] = part_of_floats<T>(tensor, begin, end, set ? set->counters() : nullptr);
  });
  Moments all;
  for (const Moments& part : found) all.merge(part);
  Statistics out = as_statistics(all);
  if (all.count > 0 && with_distribution) {
    out.distribution = counters ? spread_of(counters->totals(), all) : sorted_values(tensor);
  }
  return out;
}

/// Sums of bfloat16 alone are faster.
bool is_counted(const Tensor& tensor, bool with_distribution) {
  return size_of(tensor.dtype()) <= 2 && tensor.numel() > few_elements &&
         (with_distribution || tensor.dtype() != DType::bfloat16);
}

/// A tensor of one repeated element may have any size: one element describes it.
Statistics repeated(Statistics one, int64_t times) {
  for (int64_t* count : {&one.nan, &one.inf, &one.zeros, &one.subnormal}) *count *= times;
  if (one.norm) *one.norm *= std::sqrt(static_cast<double>(times));
  std::vector<Bin> bins = one.distribution.bins();
  for (Bin& bin : bins) bin.count *= times;
  one.distribution = Distribution(std::move(bins));
  return one;
}

}  // namespace

Statistics statistics(const Tensor& tensor, bool with_distribution) {
  if (is_complex(tensor.dtype())) {
    fail(Errc::dtype,
         "{} numbers have no order, so they have no statistics; tolist() gives their parts as {{re, im}}",
         name_of(tensor.dtype()));
  }
  Statistics out;
  if (tensor.fill() && tensor.numel() > 1) {
    out = repeated(statistics(Tensor::full_bytes(tensor.dtype(), {1}, *tensor.fill()), with_distribution),
                   tensor.numel());
  } else if (is_whole(tensor.dtype())) {
    out = whole_statistics(tensor);
  } else if (is_counted(tensor, with_distribution)) {
    out = counted_statistics(tensor);
  } else if (tensor.dtype() == DType::float64) {
    out = float_statistics<double>(tensor, with_distribution);
  } else {
    out = float_statistics<float>(tensor, with_distribution);
  }
  verify_read(*tensor.expression());
  if (with_distribution) out.distribution = split_crowded(tensor, std::move(out.distribution));
  out.numel = tensor.numel();
  return out;
}

}  // namespace cbk
