// Compiled once for each instruction set (Highway's foreach_target).
#include "host/tensor/kernels/unpack.hpp"

#include <algorithm>
#include <cstring>

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/tensor/kernels/unpack.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cbk::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using U = hn::RebindToUnsigned<F>;
using I = hn::RebindToSigned<F>;

constexpr size_t most_lanes = hn::MaxLanes(F{});
constexpr size_t most_codes = 32;  // of a word

/// A round takes a vector of words. Its steps fill a vector of numbers each, from lanes `lanes` of the words,
/// shifted by `shifts`.
struct Steps {
  HWY_ALIGN int32_t lanes[most_codes * most_lanes];
  HWY_ALIGN uint32_t shifts[most_codes * most_lanes];
};

HWY_INLINE void fill(Steps& steps, const UnpackTables& tables, size_t codes) {
  for (size_t i = 0; i < codes * hn::Lanes(F{}); ++i) {
    steps.lanes[i] = static_cast<int32_t>(i / codes);
    steps.shifts[i] = tables.shifts[i % codes];
  }
}

/// The values of codes. The table is as many vectors as it needs.
HWY_INLINE hn::Vec<F> values_of(hn::Vec<U> codes, const float* table, size_t size) {
  const F f;
  const U u;
  const size_t lanes = hn::Lanes(f);
  const auto index = hn::IndicesFromVec(f, hn::And(codes, hn::Set(u, static_cast<uint32_t>(lanes - 1))));
  auto out = hn::TableLookupLanes(hn::Load(f, table), index);
  for (size_t first = lanes; first < size; first += lanes) {
    const auto is_beyond = hn::Gt(hn::BitCast(I{}, codes), hn::Set(I{}, static_cast<int32_t>(first) - 1));
    out = hn::IfThenElse(hn::RebindMask(f, is_beyond),
                         hn::TableLookupLanes(hn::Load(f, table + first), index), out);
  }
  return out;
}

constexpr size_t table_size = std::max<size_t>(most_lanes, 16);

template <typename T>
void codes_of(const std::byte* source, size_t count, uint32_t shift, const UnpackTables& tables, float* out) {
  const F f;
  const U u;
  const hn::Rebind<T, U> narrow;
  const size_t lanes = hn::Lanes(f), size = size_t{1} << tables.bits;
  const uint32_t mask = (1U << tables.bits) - 1;
  HWY_ALIGN float table[table_size] = {};
  std::copy(tables.values.begin(), tables.values.end(), table);
  const auto shifts = hn::Set(u, shift);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    HWY_ALIGN T round[most_lanes];
    std::memcpy(round, source + i * sizeof(T), lanes * sizeof(T));
    hn::Vec<U> all;
    if constexpr (sizeof(T) == sizeof(uint32_t)) {
      all = hn::Load(u, round);
    } else {
      all = hn::PromoteTo(u, hn::Load(narrow, round));
    }
    hn::StoreU(values_of(hn::And(hn::Shr(all, shifts), hn::Set(u, mask)), table, size), f, out + i);
  }
  for (; i < count; ++i) {
    T element = 0;
    std::memcpy(&element, source + i * sizeof element, sizeof element);
    out[i] = table[static_cast<uint32_t>(element) >> shift & mask];
  }
}

void codes(const std::byte* source, uint32_t itemsize, size_t count, uint32_t shift,
           const UnpackTables& tables, float* out) {
  if (itemsize == 1) return codes_of<uint8_t>(source, count, shift, tables, out);
  if (itemsize == 2) return codes_of<uint16_t>(source, count, shift, tables, out);
  codes_of<uint32_t>(source, count, shift, tables, out);
}

void words(const std::byte* source, size_t count, const UnpackTables& tables, float* out) {
  const F f;
  const U u;
  const size_t lanes = hn::Lanes(f), codes = 32 / tables.bits, size = size_t{1} << tables.bits;
  const uint32_t mask = (1U << tables.bits) - 1;
  Steps steps;
  fill(steps, tables, codes);
  HWY_ALIGN float table[table_size] = {};
  std::copy(tables.values.begin(), tables.values.end(), table);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    HWY_ALIGN uint32_t round[most_lanes];
    std::memcpy(round, source + i * sizeof(uint32_t), lanes * sizeof(uint32_t));
    const auto all = hn::Load(u, round);
    for (size_t k = 0; k < codes; ++k) {
      const auto spread = hn::TableLookupLanes(all, hn::SetTableIndices(u, steps.lanes + k * lanes));
      const auto shifted = hn::Shr(spread, hn::Load(u, steps.shifts + k * lanes));
      hn::StoreU(values_of(hn::And(shifted, hn::Set(u, mask)), table, size), f, out + i * codes + k * lanes);
    }
  }
  for (; i < count; ++i) {
    uint32_t word = 0;
    std::memcpy(&word, source + i * sizeof word, sizeof word);
    for (size_t k = 0; k < codes; ++k) out[i * codes + k] = table[word >> tables.shifts[k] & mask];
  }
}

}  // namespace cbk::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cbk {

HWY_EXPORT(words);
HWY_EXPORT(codes);

void unpack_words(const std::byte* words, size_t count, const UnpackTables& tables, float* out) {
  HWY_DYNAMIC_DISPATCH(words)(words, count, tables, out);
}

void unpack_codes(const std::byte* elements, uint32_t itemsize, size_t count, uint32_t shift,
                  const UnpackTables& tables, float* out) {
  HWY_DYNAMIC_DISPATCH(codes)(elements, itemsize, count, shift, tables, out);
}

}  // namespace cbk
#endif
