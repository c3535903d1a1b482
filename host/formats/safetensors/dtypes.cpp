#include "host/formats/safetensors/dtypes.hpp"

#include <algorithm>
#include <array>

namespace cbk::safetensors {
namespace {

constexpr std::array<DTypeInfo, 22> table = {{
    {"BOOL", 8, DType::boolean, 0},
    {"F4", 4, std::nullopt, 1},
    {"F6_E2M3", 6, std::nullopt, 2},
    {"F6_E3M2", 6, std::nullopt, 3},
    {"U8", 8, DType::uint8, 4},
    {"I8", 8, DType::int8, 5},
    {"F8_E5M2", 8, DType::float8_e5m2, 6},
    {"F8_E4M3", 8, DType::float8_e4m3fn, 7},
    {"F8_E8M0", 8, DType::float8_e8m0fnu, 8},
    {"F8_E4M3FNUZ", 8, DType::float8_e4m3fnuz, 9},
    {"F8_E5M2FNUZ", 8, DType::float8_e5m2fnuz, 10},
    {"I16", 16, DType::int16, 11},
    {"U16", 16, DType::uint16, 12},
    {"F16", 16, DType::float16, 13},
    {"BF16", 16, DType::bfloat16, 14},
    {"I32", 32, DType::int32, 15},
    {"U32", 32, DType::uint32, 16},
    {"F32", 32, DType::float32, 17},
    {"C64", 64, DType::complex64, 18},
    {"F64", 64, DType::float64, 19},
    {"I64", 64, DType::int64, 20},
    {"U64", 64, DType::uint64, 21},
}};

template <typename Matches>
const DTypeInfo* find_if(Matches&& matches) {
  const auto* found = std::find_if(table.begin(), table.end(), matches);
  return found == table.end() ? nullptr : found;
}

}  // namespace

const DTypeInfo* find(std::string_view name) {
  return find_if([&](const DTypeInfo& info) { return info.name == name; });
}

const DTypeInfo* find(DType dtype) {
  return find_if([&](const DTypeInfo& info) { return info.dtype == dtype; });
}

}  // namespace cbk::safetensors
