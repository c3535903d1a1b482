#include "host/tensor/whole_statistics.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "host/base/bytes.hpp"
#include "host/base/interrupt.hpp"
#include "host/base/parallel.hpp"
#include "host/base/scratch.hpp"
#include "host/tensor/found_moments.hpp"
#include "host/tensor/kernels/moments.hpp"
#include "host/tensor/ranges.hpp"

namespace cbk {
namespace {

constexpr int64_t integers_together = 1 << 12;  // elements; several passes go over them in the first cache
constexpr size_t most_values = counter_count;   // different ones that are counted each

/// Sets of counters, each used by one task at a time, because sums of counts are the same in any order.
template <typename Set>
class SharedSets {
 public:
  std::unique_ptr<Set> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Set>();
    auto set = std::move(free_.back());
    free_.pop_back();
    return set;
  }

  void give_back(std::unique_ptr<Set> set) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(set));
  }

  /// All sets; all must have been returned.
  [[nodiscard]] const std::vector<std::unique_ptr<Set>>& all() const { return free_; }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Set>> free_;
};

/// Calls `visit(numbers, count)` with the blocks of a part.
template <typename T, typename Visit>
void each_block(const Tensor& tensor, int64_t part, Visit&& visit) {
  int64_t begin = part * part_size;
  const int64_t end = std::min(begin + part_size, tensor.numel());
  Scratch room(static_cast<size_t>(std::min(read_size, end - begin)) * sizeof(T));
  for (; begin < end; begin += read_size) {
    check_interrupt();
    const int64_t size = std::min(read_size, end - begin);
    tensor.read(begin, room.bytes().first(static_cast<size_t>(size) * sizeof(T)));
    const auto* numbers = reinterpret_cast<const T*>(room.data());
    for (int64_t at = 0; at < size; at += integers_together)
      visit(numbers + at, std::min(integers_together, size - at));
  }
}

int64_t parts_of(const Tensor& tensor) {
  return (tensor.numel() + part_size - 1) / part_size;
}

double root_of(long double square) {
  return static_cast<double>(std::sqrt(square));
}

/// The mean of an exact sum.
long double mean_of(Wide sum, int64_t numel) {
  const Wide count = numel;
  return static_cast<long double>(sum / count) +  // NOLINT(bugprone-integer-division): the rest is added
         static_cast<long double>(sum % count) / static_cast<long double>(numel);
}

// --- up to 16 bits: each value is counted, and everything follows from the counts

/// T: of 8 or 16 bits.
template <typename T>
struct ValueCounts {
  std::vector<int64_t> counts =
      std::vector<int64_t>(size_t{1} << 8 * sizeof(T));  // of the lowest value first
};

Statistics of_counts(const std::vector<int64_t>& counts, Wide lowest, int64_t numel) {
  Statistics out;
  Wide sum = 0;
  std::vector<Bin> bins;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const Wide value = lowest + static_cast<Wide>(i);
    if (!out.min) out.min = value;
    out.max = value;
    if (value == 0) out.zeros = counts[i];
    sum += value * counts[i];
    bins.push_back({static_cast<double>(value), static_cast<double>(value), counts[i]});
  }
  const long double mean = mean_of(sum, numel);
  long double squares = 0;
  long double deviations = 0;
  for (const Bin& bin : bins) {
    const auto count = static_cast<long double>(bin.count);
    squares += count * bin.low * bin.low;
    deviations += count * (bin.low - mean) * (bin.low - mean);
  }
  out.mean = static_cast<double>(mean);
  out.std = root_of(deviations / static_cast<long double>(numel));
  out.norm = root_of(squares);
  out.distribution = Distribution(std::move(bins));
  return out;
}

/// T: bool is read as bytes.
template <typename T>
Statistics narrow_statistics(const Tensor& tensor) {
  constexpr auto lowest =
      static_cast<int>(std::numeric_limits<T>::min());  // NOLINT(bugprone-signed-char-misuse)
  SharedSets<ValueCounts<T>> sets;
  parallel_for(parts_of(tensor), [&](int64_t part) {
    auto set = sets.take();
    each_block<T>(tensor, part, [&](const T* numbers, int64_t count) {
      for (int64_t i = 0; i < count; ++i) ++set->counts[static_cast<size_t>(numbers[i] - lowest)];
    });
    sets.give_back(std::move(set));
  });
  std::vector<int64_t> totals(size_t{1} << 8 * sizeof(T));
  for (const auto& set : sets.all()) {
    for (size_t i = 0; i < totals.size(); ++i) totals[i] += set->counts[i];
  }
  if (tensor.dtype() == DType::boolean) {  // any byte but 0 is true
    for (size_t i = 2; i < totals.size(); ++i) totals[1] += std::exchange(totals[i], 0);
  }
  return of_counts(totals, lowest, tensor.numel());
}

// --- 32 and 64 bits, and few elements

/// The place of the range that a whole number is in (counter_begin): from the bits of the double.
size_t counter_of_whole(double number) {
  if (number == 0) return counter_count / 2;
  constexpr uint64_t sign = uint64_t{1} << 63;
  const auto bits = std::bit_cast<uint64_t>(number);
  const bool is_negative = (bits & sign) != 0;
  // Rounds down to a float: away from 0 if it is negative.
  const uint64_t size = (bits & ~sign) + (is_negative ? (uint64_t{1} << 29) - 1 : 0);
  const uint64_t top = (size >> 45) - ((1023 - 127) << 7);  // exponent and seven bits, as a float has them
  return is_negative ? (counter_count / 2 - 1) - top : counter_count / 2 + top;
}

/// How often each value occurs; for too many different values, the counts of ranges of float32.
template <typename T>
class WholeCounts {
 public:
  void add(const T* numbers, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (ranges_.empty()) {
        add_value(numbers[i], 1);
      } else {
        ++ranges_[range_of(numbers[i])];
      }
    }
  }

  /// The counts of several sets as a distribution.
  static Distribution joined(const std::vector<std::unique_ptr<WholeCounts>>& sets, const Moments& moments) {
    std::map<T, int64_t> values;
    for (const auto& set : sets) {
      for (const Slot& slot : set->slots_) {
        if (slot.count > 0) values[slot.value] += slot.count;
      }
    }
    const bool is_by_range = values.size() > most_values ||
                             std::ranges::any_of(sets, [](const auto& set) { return !set->ranges_.empty(); });
    if (!is_by_range) {
      std::vector<Bin> bins;
      bins.reserve(values.size());
      for (const auto& [value, times] : values)
        bins.push_back({static_cast<double>(value), static_cast<double>(value), times});
      return Distribution(std::move(bins));
    }
    std::vector<int64_t> ranges(counter_count);
    for (const auto& [value, times] : values) ranges[range_of(value)] += times;
    for (const auto& set : sets) {
      for (size_t i = 0; i < set->ranges_.size(); ++i) ranges[i] += set->ranges_[i];
    }
    return distribution_of_ranges(ranges, moments);
  }

 private:
  struct Slot {
    T value = 0;
    int64_t count = 0;  // 0: the slot is free
  };

  /// The table fills at most half of its slots.
  void add_value(T value, int64_t times) {
    if (slots_.empty()) slots_.resize(256);
    Slot& slot = slot_of(value);
    slot.value = value;
    if (slot.count == 0) ++used_;
    slot.count += times;
    if (used_ > most_values) {
      move_to_ranges();
    } else if (2 * used_ > slots_.size()) {
      grow();
    }
  }

  Slot& slot_of(T value) {
    size_t place = (static_cast<uint64_t>(value) * 0x9e3779b97f4a7c15) >> 32;
    for (;; ++place) {
      Slot& slot = slots_[place & (slots_.size() - 1)];
      if (slot.count == 0 || slot.value == value) return slot;
    }
  }

  void grow() {
    std::vector<Slot> before(4 * slots_.size());
    before.swap(slots_);
    for (const Slot& slot : before) {
      if (slot.count > 0) slot_of(slot.value) = slot;
    }
  }

  void move_to_ranges() {
    ranges_.resize(counter_count);
    for (const Slot& slot : slots_) {
      if (slot.count > 0) ranges_[range_of(slot.value)] += slot.count;
    }
    slots_ = {};
    used_ = 0;
  }

  /// The range of the double nearest to the value.
  static size_t range_of(T value) { return counter_of_whole(static_cast<double>(value)); }

  std::vector<Slot> slots_;  // a power of two, at most half of them used
  size_t used_ = 0;
  std::vector<int64_t> ranges_;
};

/// The result for a part.
struct WholePart {
  Wide sum = 0;
  Wide squares = 0;    // of up to 32 bits
  Moments deviations;  // of 64 bits, from the tensor's first element
  Wide least = std::numeric_limits<Wide>::max();
  Wide most = std::numeric_limits<Wide>::min();
  int64_t zeros = 0;

  void merge(const WholePart& other) {
    sum += other.sum;
    squares += other.squares;
    deviations.merge(other.deviations);
    least = std::min(least, other.least);
    most = std::max(most, other.most);
    zeros += other.zeros;
  }
};

template <typename T>
void add_numbers(WholePart& part, const T* numbers, int64_t count) {
  const auto [least, most] = std::minmax_element(numbers, numbers + count);
  part.least = std::min(part.least, Wide{*least});
  part.most = std::max(part.most, Wide{*most});
  part.zeros += std::count(numbers, numbers + count, T{0});
  std::conditional_t<sizeof(T) < 8, int64_t, Wide> sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += numbers[i];
  part.sum += sum;
}

void add_squares(WholePart& part, const auto* numbers, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t number = numbers[i];
    part.squares += Wide{number} * number;
  }
}

template <typename T>
void add_deviations(WholePart& part, const T* numbers, int64_t count, T first) {
  std::array<double, integers_together> room;
  for (int64_t i = 0; i < count; ++i) {
    room[static_cast<size_t>(i)] = static_cast<double>(Wide{numbers[i]} - first);
  }
  cbk::add_numbers(part.deviations, std::span(room).first(static_cast<size_t>(count)), 0, nullptr);
}

constexpr int64_t few_enough = int64_t{1} << 31;  // elements of 32 bits: n times the sum of squares fits

/// `sums`: of all elements. The variance is exact if possible.
void set_deviations(Statistics& out, const WholePart& sums, int64_t numel, bool has_squares) {
  const auto count = static_cast<long double>(numel);
  const long double mean = mean_of(sums.sum, numel);
  out.mean = static_cast<double>(mean);
  if (has_squares) {
    const Wide variance = sums.squares * numel - sums.sum * sums.sum;  // times n²
    out.std = static_cast<double>(std::sqrt(static_cast<long double>(variance)) / count);
    out.norm = root_of(static_cast<long double>(sums.squares));
  } else {
    out.std = root_of(sums.deviations.squares / count);
    out.norm = root_of(sums.deviations.squares + count * mean * mean);
  }
}

template <typename T>
Statistics wide_statistics(const Tensor& tensor) {
  const bool has_squares = sizeof(T) < 8 && tensor.numel() < few_enough;
  T first = 0;
  tensor.read(0, std::as_writable_bytes(std::span(&first, 1)));
  std::vector<WholePart> parts(static_cast<size_t>(parts_of(tensor)));
  SharedSets<WholeCounts<T>> sets;
  parallel_for(parts_of(tensor), [&](int64_t i) {
    auto set = sets.take();
    WholePart part;
    each_block<T>(tensor, i, [&](const T* numbers, int64_t count) {
      add_numbers(part, numbers, count);
      if (has_squares) {
        add_squares(part, numbers, count);
      } else {
        add_deviations(part, numbers, count, first);
      }
      set->add(numbers, count);
    });
    parts[static_cast<size_t>(i)] = part;
    sets.give_back(std::move(set));
  });
  WholePart all = parts.front();
  for (size_t i = 1; i < parts.size(); ++i) all.merge(parts[i]);
  Statistics out;
  out.min = all.least;
  out.max = all.most;
  out.zeros = all.zeros;
  set_deviations(out, all, tensor.numel(), has_squares);
  Moments limits;
  limits.min = static_cast<double>(all.least);
  limits.max = static_cast<double>(all.most);
  limits.zeros = all.zeros;
  out.distribution = WholeCounts<T>::joined(sets.all(), limits);
  return out;
}

}  // namespace

Statistics whole_statistics(const Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  switch (tensor.dtype()) {
    case DType::int8:
      return narrow_statistics<int8_t>(tensor);
    case DType::uint16:
      return tensor.numel() <= few_elements ? wide_statistics<uint16_t>(tensor)
                                            : narrow_statistics<uint16_t>(tensor);
    case DType::int16:
      return tensor.numel() <= few_elements ? wide_statistics<int16_t>(tensor)
                                            : narrow_statistics<int16_t>(tensor);
    case DType::uint32:
      return wide_statistics<uint32_t>(tensor);
    case DType::int32:
      return wide_statistics<int32_t>(tensor);
    case DType::uint64:
      return wide_statistics<uint64_t>(tensor);
    case DType::int64:
      return wide_statistics<int64_t>(tensor);
    default:
      return narrow_statistics<uint8_t>(tensor);
  }
}

}  // namespace cbk
