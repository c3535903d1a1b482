#include "host/tensor/dtype.hpp"

#include <array>
#include <string>
#include <vector>

#include "host/base/error.hpp"

namespace cbk {
namespace {

/// exponent and mantissa bits say which values a float can hold; for integers mantissa = value bits.
struct Traits {
  std::string_view name;
  uint8_t size;
  char kind;  // b bool, u unsigned, i signed, f float, c complex
  uint8_t exponent;
  uint8_t mantissa;
};

constexpr std::array<Traits, dtype_count> table = {{
    {"bool", 1, 'b', 0, 1},
    {"uint8", 1, 'u', 0, 8},
    {"int8", 1, 'i', 0, 7},
    {"uint16", 2, 'u', 0, 16},
    {"int16", 2, 'i', 0, 15},
    {"uint32", 4, 'u', 0, 32},
    {"int32", 4, 'i', 0, 31},
    {"uint64", 8, 'u', 0, 64},
    {"int64", 8, 'i', 0, 63},
    {"float8_e4m3fn", 1, 'f', 4, 3},
    {"float8_e5m2", 1, 'f', 5, 2},
    {"float8_e4m3fnuz", 1, 'f', 4, 3},
    {"float8_e5m2fnuz", 1, 'f', 5, 2},
    {"float8_e8m0fnu", 1, 'f', 8, 0},
    {"float16", 2, 'f', 5, 10},
    {"bfloat16", 2, 'f', 8, 7},
    {"float32", 4, 'f', 8, 23},
    {"float64", 8, 'f', 11, 52},
    {"complex64", 8, 'c', 8, 23},
    {"complex128", 16, 'c', 11, 52},
}};

const Traits& traits(DType dtype) {
  return table.at(static_cast<size_t>(dtype));
}

struct Alias {
  std::string_view name;
  DType dtype;
};
constexpr std::array<Alias, 16> aliases = {{
    {"float", DType::float32},
    {"half", DType::float16},
    {"double", DType::float64},
    {"int", DType::int32},
    {"long", DType::int64},
    {"short", DType::int16},
    {"byte", DType::uint8},
    {"char", DType::int8},
    {"f64", DType::float64},
    {"f32", DType::float32},
    {"f16", DType::float16},
    {"fp32", DType::float32},
    {"fp16", DType::float16},
    {"bf16", DType::bfloat16},
    {"cfloat", DType::complex64},
    {"cdouble", DType::complex128},
}};

}  // namespace

uint32_t size_of(DType dtype) {
  return traits(dtype).size;
}
std::string_view name_of(DType dtype) {
  return traits(dtype).name;
}
bool is_floating(DType dtype) {
  return traits(dtype).kind == 'f';
}
bool is_complex(DType dtype) {
  return traits(dtype).kind == 'c';
}
bool is_integer(DType dtype) {
  return traits(dtype).kind == 'i' || traits(dtype).kind == 'u';
}

std::optional<DType> find_dtype(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i].name == name) return static_cast<DType>(i);
  }
  for (const Alias& alias : aliases) {
    if (alias.name == name) return alias.dtype;
  }
  return std::nullopt;
}

DType parse_dtype(std::string_view name) {
  if (auto dtype = find_dtype(name)) return *dtype;
  std::vector<std::string> names;
  names.reserve(table.size());
  for (const Traits& entry : table) names.emplace_back(entry.name);
  std::vector<std::string> near = nearest(name, names, 2);
  for (std::string& one : near) one = quote(one);
  fail(Errc::dtype, "{} is not a dtype; {}", quote(name),
       near.empty() ? "known are " + listed(names, names.size())
                    : fmt::format("did you mean {}?", fmt::join(near, " or ")));
}

bool loses(DType from, DType to) {
  const Traits& a = traits(from);
  const Traits& b = traits(to);
  if (from == to || a.kind == 'b') return false;
  if (b.kind == 'b') return true;
  if (a.kind == 'c') return b.kind != 'c' || b.mantissa < a.mantissa;
  if (a.kind == 'f') {
    return b.kind == 'u' || b.kind == 'i' || b.mantissa < a.mantissa || b.exponent < a.exponent ||
           (b.size == 1 && from != to);
  }
  if (b.kind == 'f' || b.kind == 'c') return b.mantissa + 1 < a.mantissa;
  return (a.kind == 'i' && b.kind == 'u') || b.mantissa < a.mantissa;
}

}  // namespace cbk
