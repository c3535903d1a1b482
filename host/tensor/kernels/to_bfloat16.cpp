// Compiled once for each instruction set (Highway's foreach_target).
#include "host/tensor/kernels/to_bfloat16.hpp"

#include <algorithm>
#include <cstring>

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/tensor/kernels/to_bfloat16.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cbk::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<int32_t>;
using Narrow = hn::Rebind<uint16_t, D>;

/// As many as whole vectors hold; the number of elements that are done.
int64_t whole_vectors(const int32_t* source, uint16_t* out, int64_t count, Losses& lost) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto one = hn::Set(d, 1), half = hn::Set(d, 0x7fff), magnitude = hn::Set(d, 0x7fffffff);
  const auto infinite = hn::Set(d, 0x7f800000), quiet = hn::Set(d, 0x7fc0), mask = hn::Set(d, 0xffff);
  const auto largest = hn::Set(d, 0x7f7f7fff), smallest = hn::Set(d, 0x8001);
  const auto zero = hn::Zero(d);
  auto overflowed = zero, vanished = zero;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto bits = hn::LoadU(d, source + i);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto rounded = hn::And(hn::ShiftRight<16>(hn::Add(bits, hn::Add(half, hn::And(upper, one)))), mask);
    const auto size = hn::And(bits, magnitude);
    const auto result = hn::IfThenElse(hn::Gt(size, infinite), quiet, rounded);
    hn::StoreU(hn::DemoteTo(Narrow{}, result), Narrow{}, out + i);
    const auto overflows = hn::And(hn::Gt(size, largest), hn::Lt(size, infinite));
    const auto vanishes = hn::And(hn::Lt(size, smallest), hn::Gt(size, zero));
    overflowed = hn::Sub(overflowed, hn::VecFromMask(d, overflows));
    vanished = hn::Sub(vanished, hn::VecFromMask(d, vanishes));
  }
  lost.overflowed += hn::GetLane(hn::SumOfLanes(d, overflowed));
  lost.vanished += hn::GetLane(hn::SumOfLanes(d, vanished));
  return i;
}

}  // namespace cbk::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cbk {

HWY_EXPORT(whole_vectors);

namespace {

/// The last few elements, in a vector that is filled up with zeros, of which none is lost.
void last_elements(const std::byte* source, std::byte* out, int64_t count, Losses& lost) {
  constexpr size_t widest = 64;
  int32_t numbers[widest] = {};
  uint16_t results[widest];
  std::memcpy(numbers, source, static_cast<size_t>(count) * sizeof numbers[0]);
  HWY_DYNAMIC_DISPATCH(whole_vectors)(numbers, results, widest, lost);
  std::memcpy(out, results, static_cast<size_t>(count) * sizeof results[0]);
}

}  // namespace

Losses to_bfloat16(const std::byte* source, std::byte* out, int64_t count) {
  Losses lost;
  constexpr int64_t piece = int64_t{1} << 20;  // a lane counts less than 2^31 of them
  for (int64_t first = 0; first < count; first += piece) {
    const int64_t length = std::min(piece, count - first);
    const std::byte* from = source + static_cast<size_t>(first) * sizeof(float);
    std::byte* to = out + static_cast<size_t>(first) * sizeof(uint16_t);
    const int64_t done = HWY_DYNAMIC_DISPATCH(whole_vectors)(reinterpret_cast<const int32_t*>(from),
                                                             reinterpret_cast<uint16_t*>(to), length, lost);
    if (done < length)
      last_elements(from + static_cast<size_t>(done) * sizeof(float),
                    to + static_cast<size_t>(done) * sizeof(uint16_t), length - done, lost);
  }
  return lost;
}

}  // namespace cbk
#endif
