#include "host/tensor/trim.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/interrupt.hpp"
#include "host/base/parallel.hpp"
#include "host/base/scratch.hpp"
#include "host/tensor/counter_random.hpp"
#include "host/tensor/kernels/merge.hpp"

namespace cbk {
namespace {

constexpr int64_t trim_ranges = 16;  // of the elements, each for one task: results do not depend on threads
constexpr int64_t trim_chunk = int64_t{64} * 1024;    // elements
constexpr int64_t most_counted = int64_t{1} << 31;    // elements that counters of 32 bits hold
constexpr int64_t most_in_memory = int64_t{1} << 20;  // elements
constexpr int lower_bits = 15;
constexpr size_t upper_count = size_t{1} << (31 - lower_bits);
constexpr size_t lower_count = size_t{1} << lower_bits;

using Counts = std::vector<int64_t>;

/// The difference of two tensors, range by range.
class DifferenceReader {
 public:
  DifferenceReader(const Expression& base, const Expression& tuned) : base_(base), tuned_(tuned) {}

  /// Calls `visit(range, begin, elements, count)` for the chunks of each range, in order within the range.
  template <typename Visit>
  void each(Visit&& visit) const {
    parallel_for(ranges(), [&](int64_t range) { each_of(range, visit); });
  }

  template <typename Visit>
  void each_of(int64_t range, Visit&& visit) const {
    const int64_t stop = numel() * (range + 1) / ranges();
    const size_t item = base_.itemsize();
    const auto room = static_cast<size_t>(std::min(trim_chunk, numel())) * item;
    Scratch tuned(room);
    Scratch base(room);
    for (int64_t begin = numel() * range / ranges(); begin < stop; begin += trim_chunk) {
      check_interrupt();
      const int64_t count = std::min(trim_chunk, stop - begin);
      const size_t bytes = static_cast<size_t>(count) * item;
      tuned_.read(begin, tuned.bytes().first(bytes));
      base_.read(begin, base.bytes().first(bytes));
      tuned_.drop(begin, begin + count);
      base_.drop(begin, begin + count);
      subtract(base_.dtype(), tuned.data(), base.data(), count);
      visit(range, begin, tuned.data(), count);
    }
  }

  [[nodiscard]] int64_t numel() const { return base_.numel(); }
  [[nodiscard]] int64_t ranges() const { return std::clamp<int64_t>(numel() / trim_chunk, 1, trim_ranges); }
  [[nodiscard]] DType dtype() const { return base_.dtype(); }

 private:
  const Expression& base_;
  const Expression& tuned_;
};

/// The last bucket, from the largest sizes down, with which at least `wanted` are reached; `above` are in
/// those before it.
struct Bucket {
  uint32_t number = 0;
  int64_t above = 0;
};
Bucket bucket_of(const Counts& counts, int64_t wanted) {
  Bucket found;
  for (found.number = static_cast<uint32_t>(counts.size()) - 1; found.number > 0; --found.number) {
    if (found.above + counts[found.number] >= wanted) break;
    found.above += counts[found.number];
  }
  return found;
}

/// Calls `visit(range, position, bits)` for the elements.
template <typename Visit>
auto with_bits(const DifferenceReader& reader, Visit&& visit) {
  return [&reader, visit](int64_t range, int64_t begin, const std::byte* elements, int64_t count) {
    Scratch room(static_cast<size_t>(count) * sizeof(uint32_t));
    auto* bits = reinterpret_cast<uint32_t*>(room.data());
    magnitude_bits(reader.dtype(), elements, bits, count);
    for (int64_t i = 0; i < count; ++i) visit(range, begin + i, bits[i]);
  };
}

Bucket upper_bucket(const DifferenceReader& reader, int64_t wanted) {
  std::array<std::vector<uint32_t>, trim_ranges> counters;
  Counts total(upper_count);
  std::mutex mutex;
  const auto collect = [&](std::vector<uint32_t>& own) {
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < own.size(); ++i) total[i % upper_count] += own[i];
    std::fill(own.begin(), own.end(), 0);
  };
  std::array<int64_t, trim_ranges> counted{};
  reader.each([&](int64_t range, int64_t /*begin*/, const std::byte* elements, int64_t count) {
    std::vector<uint32_t>& own = counters[static_cast<size_t>(range)];
    own.resize(2 * upper_count);
    Scratch room(static_cast<size_t>(count) * sizeof(uint32_t));
    auto* bits = reinterpret_cast<uint32_t*>(room.data());
    magnitude_bits(reader.dtype(), elements, bits, count);
    count_bits(bits, count, lower_bits, own.data(), upper_count);
    int64_t& sum = counted[static_cast<size_t>(range)];
    sum += count;
    if (sum < most_counted) return;
    collect(own);
    sum = 0;
  });
  for (std::vector<uint32_t>& own : counters) collect(own);
  return bucket_of(total, wanted);
}

/// The position of the `number`-th element of a range with these bits, from 1.
int64_t position_of(const DifferenceReader& reader, int64_t range, uint32_t threshold, int64_t number) {
  int64_t position = -1;
  reader.each_of(range, with_bits(reader, [&](int64_t, int64_t at, uint32_t bits) {
                   if (bits == threshold && --number == 0) position = at;
                 }));
  return position;
}

/// For tensors of which all sizes are in memory.
void select_threshold(const DifferenceReader& reader, int64_t wanted, Trim& trim) {
  std::vector<uint32_t> bits(static_cast<size_t>(reader.numel()));
  reader.each([&](int64_t /*range*/, int64_t begin, const std::byte* elements, int64_t count) {
    magnitude_bits(reader.dtype(), elements, bits.data() + begin, count);
  });
  std::vector<uint32_t> sorted = bits;
  const auto last = sorted.begin() + (wanted - 1);
  std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
  trim.threshold = *last;
  int64_t equal =
      wanted - std::count_if(bits.begin(), bits.end(), [&](uint32_t size) { return size > trim.threshold; });
  for (size_t i = 0; equal > 0; ++i) {
    if (bits[i] != trim.threshold) continue;
    trim.last_equal = static_cast<int64_t>(i);
    --equal;
  }
}

void measure_threshold(const DifferenceReader& reader, int64_t wanted, Trim& trim) {
  if (reader.numel() <= most_in_memory) return select_threshold(reader, wanted, trim);
  const Bucket upper = upper_bucket(reader, wanted);
  std::array<Counts, trim_ranges> counts;
  for (Counts& own : counts) own.resize(lower_count);
  reader.each(with_bits(reader, [&](int64_t range, int64_t, uint32_t bits) {
    if (bits >> lower_bits == upper.number) ++counts[static_cast<size_t>(range)][bits & (lower_count - 1)];
  }));
  Counts total(lower_count);
  for (const Counts& own : counts) {
    for (size_t i = 0; i < lower_count; ++i) total[i] += own[i];
  }
  const Bucket lower = bucket_of(total, wanted - upper.above);
  trim.threshold = (upper.number << lower_bits) | lower.number;
  int64_t equal = wanted - upper.above - lower.above;
  trim.last_equal = reader.numel();
  if (total[lower.number] == equal) return;
  for (int64_t range = 0; range < reader.ranges(); ++range) {
    const int64_t here = counts[static_cast<size_t>(range)][lower.number];
    if (here >= equal) {
      trim.last_equal = position_of(reader, range, trim.threshold, equal);
      return;
    }
    equal -= here;
  }
}

void measure_scale(const DifferenceReader& reader, const TrimRule& rule, Trim& trim) {
  constexpr double negligible = 1e-7;
  std::array<double, trim_ranges> before{};
  std::array<double, trim_ranges> after{};
  reader.each([&](int64_t range, int64_t begin, std::byte* elements, int64_t count) {
    before[static_cast<size_t>(range)] += sum_of_sizes(reader.dtype(), elements, count);
    apply_trim(rule, trim, reader.dtype(), begin, elements, count);
    after[static_cast<size_t>(range)] += sum_of_sizes(reader.dtype(), elements, count);
  });
  double all = 0;
  double kept = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    all += before[i];
    kept += after[i];
  }
  if (all >= negligible && kept >= negligible) trim.scale = all / kept;
}

}  // namespace

std::string TrimRule::text() const {
  if (keeps_all()) return "all";
  return fmt::format("{} {}{}", kind == Kind::magnitude ? "largest" : fmt::format("random {:x}", stream),
                     density, is_rescaled ? " rescaled" : "");
}

int64_t kept_by_size(const TrimRule& rule, int64_t numel) {
  return static_cast<int64_t>(rule.density * static_cast<double>(numel));
}

Trim measure_trim(const TrimRule& rule, const Expression& base, const Expression& tuned) {
  Trim trim;
  if (rule.keeps_all() || base.numel() == 0) return trim;
  const DifferenceReader reader(base, tuned);
  if (rule.kind == TrimRule::Kind::magnitude)
    measure_threshold(reader, kept_by_size(rule, base.numel()), trim);
  if (rule.is_rescaled) measure_scale(reader, rule, trim);
  return trim;
}

void apply_trim(const TrimRule& rule, const Trim& trim, DType dtype, int64_t begin, std::byte* elements,
                int64_t count) {
  if (rule.keeps_all()) return;
  if (rule.kind == TrimRule::Kind::magnitude) {
    keep_largest(dtype, trim.threshold, trim.last_equal - begin + 1, elements, count);
  } else {
    keep_random(dtype, rule.stream, begin, rule.density, elements, count);
  }
  if (trim.scale != 1) multiply_by(dtype, elements, trim.scale, count);
}

}  // namespace cbk
