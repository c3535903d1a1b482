#include "host/tensor/counted.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "host/base/bytes.hpp"
#include "host/base/interrupt.hpp"
#include "host/base/parallel.hpp"
#include "host/base/scratch.hpp"
#include "host/tensor/found_moments.hpp"
#include "host/tensor/kernels/cast.hpp"
#include "host/tensor/shared_counters.hpp"

namespace cbk {
namespace {

std::vector<int64_t> counts_of_patterns(const Tensor& tensor) {
  const auto itemsize = static_cast<int64_t>(size_of(tensor.dtype()));
  const int64_t parts = (tensor.numel() + part_size - 1) / part_size;
  SharedCounters counters;
  parallel_for(parts, [&](int64_t part) {
    const int64_t end = std::min((part + 1) * part_size, tensor.numel());
    const SharedCounters::Set set(counters, end - part * part_size);
    Scratch raw(static_cast<size_t>(read_size * itemsize));
    for (int64_t begin = part * part_size; begin < end; begin += read_size) {
      check_interrupt();
      const auto bytes = raw.bytes().first(static_cast<size_t>(std::min(read_size, end - begin) * itemsize));
      tensor.read(begin, bytes);
      itemsize == 1 ? count_bytes(bytes, set.counters()) : count_pairs(bytes, set.counters());
    }
  });
  return counters.totals();
}

/// The number of each bit pattern.
std::vector<double> numbers_of_patterns(DType dtype) {
  const size_t itemsize = size_of(dtype);
  const size_t count = size_t{1} << 8 * itemsize;
  Bytes patterns(count * itemsize);
  for (size_t i = 0; i < count; ++i) std::memcpy(patterns.data() + i * itemsize, &i, itemsize);
  std::vector<double> out(count);
  cast_elements(dtype, patterns.data(), DType::float64, reinterpret_cast<std::byte*>(out.data()),
                static_cast<int64_t>(count));
  return out;
}

/// The finite numbers that occur, in ascending order; several patterns may be the same number. Other values
/// are counted.
std::vector<Bin> bins_of(const std::vector<int64_t>& counts, DType dtype, Moments& strange) {
  const std::vector<double> numbers = numbers_of_patterns(dtype);
  std::vector<Bin> bins;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double number = numbers[i % numbers.size()];
    if (counts[i] == 0) continue;
    if (std::isfinite(number)) {
      bins.push_back({number, number, counts[i]});
    } else {
      (std::isnan(number) ? strange.nan : strange.inf) += counts[i];
    }
  }
  std::ranges::sort(bins, {}, &Bin::low);
  std::vector<Bin> out;
  for (const Bin& bin : bins) {
    if (out.empty() || out.back().low != bin.low) out.push_back({bin.low, bin.low, 0});
    out.back().count += bin.count;
  }
  return out;
}

void add_bins(Moments& out, const std::vector<Bin>& bins, double least_normal) {
  for (const Bin& bin : bins) {
    out.count += bin.count;
    out.mean += static_cast<long double>(bin.count) * bin.low;
    if (bin.low == 0) {
      out.zeros = bin.count;
    } else if (std::fabs(bin.low) < least_normal) {
      out.subnormal += bin.count;
    }
  }
  if (out.count == 0) return;
  out.min = bins.front().low;
  out.max = bins.back().low;
  out.mean /= static_cast<long double>(out.count);
  for (const Bin& bin : bins) {
    out.squares += static_cast<long double>(bin.count) * (bin.low - out.mean) * (bin.low - out.mean);
  }
}

}  // namespace

Statistics counted_statistics(const Tensor& tensor) {
  const DType dtype = tensor.dtype();
  Moments moments;
  std::vector<Bin> bins = bins_of(counts_of_patterns(tensor), dtype, moments);
  add_bins(moments, bins, least_normal(dtype));
  Statistics out = as_statistics(moments);
  out.distribution = Distribution(std::move(bins));
  return out;
}

}  // namespace cbk
