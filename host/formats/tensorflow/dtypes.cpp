#include "host/formats/tensorflow/dtypes.hpp"

#include <algorithm>
#include <array>

namespace cbk::tensorflow {
namespace {

using Kind = DTypeInfo::Kind;

constexpr std::array<DTypeInfo, 32> table = {{
    {1, "float32", Kind::plain, DType::float32},
    {2, "float64", Kind::plain, DType::float64},
    {3, "int32", Kind::plain, DType::int32},
    {4, "uint8", Kind::plain, DType::uint8},
    {5, "int16", Kind::plain, DType::int16},
    {6, "int8", Kind::plain, DType::int8},
    {7, "string", Kind::string},
    {8, "complex64", Kind::plain, DType::complex64},
    {9, "int64", Kind::plain, DType::int64},
    {10, "bool", Kind::plain, DType::boolean},
    {11, "qint8", Kind::quantized, DType::int8},
    {12, "quint8", Kind::quantized, DType::uint8},
    {13, "qint32", Kind::quantized, DType::int32},
    {14, "bfloat16", Kind::plain, DType::bfloat16},
    {15, "qint16", Kind::quantized, DType::int16},
    {16, "quint16", Kind::quantized, DType::uint16},
    {17, "uint16", Kind::plain, DType::uint16},
    {18, "complex128", Kind::plain, DType::complex128},
    {19, "float16", Kind::plain, DType::float16},
    {20, "resource", Kind::unreadable},
    {21, "variant", Kind::unreadable},
    {22, "uint32", Kind::plain, DType::uint32},
    {23, "uint64", Kind::plain, DType::uint64},
    {24, "float8_e5m2", Kind::plain, DType::float8_e5m2},
    {25, "float8_e4m3fn", Kind::plain, DType::float8_e4m3fn},
    {26, "float8_e4m3fnuz", Kind::plain, DType::float8_e4m3fnuz},
    {27, "float8_e4m3b11fnuz", Kind::unreadable},
    {28, "float8_e5m2fnuz", Kind::plain, DType::float8_e5m2fnuz},
    {29, "int4", Kind::unreadable},
    {30, "uint4", Kind::unreadable},
    {31, "int2", Kind::unreadable},
    {32, "uint2", Kind::unreadable},
}};

template <typename Matches>
const DTypeInfo* find_if(Matches&& matches) {
  const auto* found = std::find_if(table.begin(), table.end(), matches);
  return found == table.end() ? nullptr : found;
}

}  // namespace

const DTypeInfo* find(int number) {
  return find_if([&](const DTypeInfo& info) { return info.number == number; });
}

const DTypeInfo* find(std::string_view name) {
  return find_if([&](const DTypeInfo& info) { return info.name == name; });
}

const DTypeInfo* find(DType dtype) {
  return find_if([&](const DTypeInfo& info) { return info.kind == Kind::plain && info.dtype == dtype; });
}

}  // namespace cbk::tensorflow
