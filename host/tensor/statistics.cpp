#include "host/tensor/statistics.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "host/base/bytes.hpp"
#include "host/base/error.hpp"
#include "host/base/interrupt.hpp"
#include "host/base/parallel.hpp"
#include "host/base/scratch.hpp"
#include "host/tensor/kernels/cast.hpp"
#include "host/tensor/kernels/moments.hpp"

namespace cbk {
namespace {

constexpr int64_t read_size = 1 << 16;   // elements that are read at once
constexpr int64_t block_size = 1 << 12;  // of those; several passes go over them in the first cache
constexpr int64_t few = 1 << 12;         // elements that are sorted instead of counted
constexpr int64_t part_size = 1 << 18;   // elements of a task; results are joined in the order of the parts

/// The least positive number that is not subnormal.
double least_normal(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return 0x1p-14;
    case DType::float8_e4m3fn:
      return 0x1p-6;
    case DType::float8_e5m2:
      return 0x1p-14;
    case DType::float8_e4m3fnuz:
      return 0x1p-7;
    case DType::float8_e5m2fnuz:
      return 0x1p-15;
    case DType::float8_e8m0fnu:
      return 0;  // it has only normal numbers
    case DType::float64:
      return std::numeric_limits<double>::min();
    default:
      return std::numeric_limits<float>::min();
  }
}

/// The elements as numbers of type T: where they are, or converted in `room`.
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

/// Counters of float32 ranges, a set for each thread that asks: sums of counts are the same in any order.
class SharedCounters {
 public:
  struct Set {
    std::vector<uint32_t> counters = std::vector<uint32_t>(counter_count);
    int64_t added = 0;
  };

  /// A set that nobody else has, to be given back.
  std::unique_ptr<Set> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Set>();
    auto set = std::move(free_.back());
    free_.pop_back();
    return set;
  }

  void give_back(std::unique_ptr<Set> set) {
    const std::lock_guard lock(mutex_);
    if (set->added > std::numeric_limits<int32_t>::max()) collect(*set);  // before a counter can overflow
    free_.push_back(std::move(set));
  }

  /// All sets in one; they have all been given back.
  const std::vector<int64_t>& totals() {
    for (const auto& set : free_) collect(*set);
    return totals_;
  }

 private:
  void collect(Set& set) {
    for (size_t i = 0; i < counter_count; ++i) totals_[i] += set.counters[i];
    std::fill(set.counters.begin(), set.counters.end(), 0);
    set.added = 0;
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Set>> free_;
  std::vector<int64_t> totals_ = std::vector<int64_t>(counter_count);
};

/// The value of an element whose float32 has the counter, for dtypes that have one for each.
double single_value(size_t counter) {
  const uint32_t negative = std::bit_cast<uint32_t>(counter_begin(counter)) & 0xffff0000U;
  return static_cast<double>(counter < counter_count / 2 ? std::bit_cast<float>(negative)
                                                         : counter_begin(counter));
}

Distribution distribution_of(const std::vector<int64_t>& counters, const Moments& moments, DType dtype) {
  const bool is_exact = !loses(dtype, DType::bfloat16);
  constexpr size_t zero = counter_count / 2;
  std::vector<Bin> bins;
  const auto add = [&](double low, double high, int64_t count) {
    if (count > 0) bins.push_back({std::max(low, moments.min), std::min(high, moments.max), count});
  };
  for (size_t i = 0; i < counters.size(); ++i) {
    if (counters[i] == 0) continue;
    const auto low = static_cast<double>(counter_begin(i));
    const auto high = i + 1 < counter_count ? static_cast<double>(counter_begin(i + 1)) : moments.max;
    if (is_exact) {
      add(single_value(i), single_value(i), counters[i]);
    } else if (i == zero) {
      add(0, 0, moments.zeros);
      add(0, high, counters[i] - moments.zeros);
    } else {
      add(low, high, counters[i]);
    }
  }
  return Distribution(std::move(bins));
}

/// Of few elements, each value.
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

/// Counts what is left of a block.
void count_block(const Block<float>& block, std::vector<float>& /*floors*/, std::vector<uint32_t>& counters) {
  count_floats(block.numbers, std::span<uint32_t, counter_count>(counters));
}
void count_block(const Block<double>& block, std::vector<float>& floors, std::vector<uint32_t>& counters) {
  floors.resize(block.numbers.size());
  std::ranges::transform(block.numbers, floors.begin(), floor_to_float);
  count_floats(floors, std::span<uint32_t, counter_count>(counters));
}

/// `counters`: empty where nobody asks how numbers are spread.
template <typename T>
Moments part_of_floats(const Tensor& tensor, int64_t begin, int64_t end, std::vector<uint32_t>& counters) {
  const auto itemsize = static_cast<int64_t>(size_of(tensor.dtype()));
  Moments out;
  std::vector<T> room;
  std::vector<float> floors;
  Block<T> block;
  Scratch raw(static_cast<size_t>(std::min(read_size, end - begin) * itemsize));
  for (; begin < end; begin += read_size) {
    check_interrupt();
    const int64_t size = std::min(read_size, end - begin);
    tensor.read(begin, raw.bytes().first(static_cast<size_t>(size * itemsize)));
    for (int64_t at = 0; at < size; at += block_size) {
      const int64_t count = std::min(block_size, size - at);
      const auto bytes =
          raw.bytes().subspan(static_cast<size_t>(at * itemsize), static_cast<size_t>(count * itemsize));
      block.numbers = as_numbers<T>(tensor.dtype(), bytes, room);
      add_block(out, block, least_normal(tensor.dtype()));
      if (!counters.empty()) count_block(block, floors, counters);
    }
  }
  return out;
}

template <typename T>
Statistics float_statistics(const Tensor& tensor, bool with_distribution) {
  const int64_t parts = (tensor.numel() + part_size - 1) / part_size;
  std::vector<Moments> found(static_cast<size_t>(parts));
  const bool with_counters = with_distribution && tensor.numel() > few;
  SharedCounters counters;
  std::vector<uint32_t> no_counters;
  parallel_for(parts, [&](int64_t part) {
    const int64_t begin = part * part_size;
    const int64_t end = std::min(begin + part_size, tensor.numel());
    if (!with_counters) {
      found[static_cast<size_t>(part)] = part_of_floats<T>(tensor, begin, end, no_counters);
      return;
    }
    auto set = counters.take();
    found[static_cast<size_t>(part)] = part_of_floats<T>(tensor, begin, end, set->counters);
    set->added += end - begin;
    counters.give_back(std::move(set));
  });
  Moments all;
  for (const Moments& part : found) all.merge(part);

  Statistics out;
  out.nan = all.nan;
  out.inf = all.inf;
  out.zeros = all.zeros;
  out.subnormal = all.subnormal;
  if (all.count == 0) return out;
  const auto count = static_cast<long double>(all.count);
  out.min = all.min;
  out.max = all.max;
  out.mean = static_cast<double>(all.mean);
  out.std = static_cast<double>(std::sqrt(all.squares / count));
  out.norm = static_cast<double>(std::sqrt(all.squares + count * all.mean * all.mean));
  if (!with_distribution) return out;
  out.distribution =
      tensor.numel() <= few ? sorted_values(tensor) : distribution_of(counters.totals(), all, tensor.dtype());
  return out;
}

// --- integers and bools

/// How often each value occurs; of more than 65,536 different ones, how many fall into ranges of float32.
class WholeCounts {
 public:
  void add(std::vector<Wide>& numbers) {
    std::sort(numbers.begin(), numbers.end());
    for (auto first = numbers.begin(); first != numbers.end();) {
      const auto last = std::upper_bound(first, numbers.end(), *first);
      count(*first, last - first);
      first = last;
    }
  }

  [[nodiscard]] Distribution distribution(const Moments& moments) const {
    if (!ranges_.empty()) return distribution_of(ranges_, moments, DType::float64);
    std::vector<Bin> bins;
    for (const auto& [value, times] : values_)
      bins.push_back({static_cast<double>(value), static_cast<double>(value), times});
    return Distribution(std::move(bins));
  }

 private:
  void count(Wide value, int64_t times) {
    if (ranges_.empty()) {
      values_[value] += times;
      if (values_.size() > counter_count) move_to_ranges();
    } else {
      ranges_[range_of(value)] += times;
    }
  }

  void move_to_ranges() {
    ranges_.resize(counter_count);
    for (const auto& [value, times] : values_) ranges_[range_of(value)] += times;
    values_.clear();
  }

  static size_t range_of(Wide value) { return counter_of(floor_to_float(static_cast<double>(value))); }

  std::map<Wide, int64_t> values_;
  std::vector<int64_t> ranges_;
};

/// Least, most and sum as they are; deviations from the first element.
Statistics whole_statistics(const Tensor& tensor) {
  Statistics out;
  if (tensor.numel() == 0) return out;
  const auto itemsize = static_cast<int64_t>(size_of(tensor.dtype()));
  Wide first = 0;
  Wide sum = 0;
  std::vector<Wide> numbers;
  std::vector<double> deviations;
  Moments moments;
  WholeCounts counts;
  Block<double> block;
  for (int64_t begin = 0; begin < tensor.numel(); begin += block_size) {
    check_interrupt();
    const int64_t count = std::min(block_size, tensor.numel() - begin);
    Scratch raw(static_cast<size_t>(count * itemsize));
    tensor.read(begin, raw.bytes());
    numbers.clear();
    deviations.clear();
    for (int64_t i = 0; i < count; ++i) {
      const Wide number = whole_at(tensor.dtype(), raw.data() + i * itemsize);
      if (begin == 0 && i == 0) first = number;
      sum += number;
      if (number == 0) ++out.zeros;
      numbers.push_back(number);
      deviations.push_back(static_cast<double>(number - first));
    }
    block.numbers = deviations;
    add_block(moments, block, 0);
    counts.add(numbers);
    out.min = out.min ? std::min(std::get<Wide>(*out.min), numbers.front()) : numbers.front();
    out.max = out.max ? std::max(std::get<Wide>(*out.max), numbers.back()) : numbers.back();
  }
  const auto count = static_cast<long double>(tensor.numel());
  const long double mean =
      static_cast<long double>(sum / tensor.numel()) + static_cast<long double>(sum % tensor.numel()) / count;
  out.mean = static_cast<double>(mean);
  out.std = static_cast<double>(std::sqrt(moments.squares / count));
  out.norm = static_cast<double>(std::sqrt(moments.squares + count * mean * mean));
  moments.min = static_cast<double>(std::get<Wide>(*out.min));
  moments.max = static_cast<double>(std::get<Wide>(*out.max));
  moments.zeros = out.zeros;
  out.distribution = counts.distribution(moments);
  return out;
}

/// A tensor of one repeated element has any size: it is described by one of them.
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
  } else if (tensor.dtype() == DType::float64) {
    out = float_statistics<double>(tensor, with_distribution);
  } else {
    out = float_statistics<float>(tensor, with_distribution);
  }
  out.numel = tensor.numel();
  return out;
}

}  // namespace cbk
