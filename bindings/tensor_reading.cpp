// Methods of Tensor that read its elements.
#include <algorithm>
#include <cmath>

#include "bindings/elements.hpp"
#include "bindings/tensor_methods.hpp"
#include "host/tensor/compare.hpp"
#include "host/tensor/digest.hpp"
#include "host/tensor/grid.hpp"
#include "host/tensor/scan.hpp"
#include "host/tensor/statistics.hpp"

namespace cbk::lua {

/// Keeps the bytes behind `t:ptr()`.
struct Anchor {
  Tensor tensor;
  Bytes copy;
};
template <>
struct TypeName<Anchor> {
  static constexpr const char* value = "Anchor";
};

std::vector<double> numbers_of(lua_State* L, const Options& options, const char* name) {
  std::vector<double> out;
  if (!options.has(name)) return out;
  options.push(name);
  if (!lua_istable(L, -1)) fail(Errc::usage, "expected a list of numbers as {}", name);
  for (size_t i = 1; i <= lua_objlen(L, -1); ++i) {
    lua_rawgeti(L, -1, static_cast<int>(i));
    if (lua_type(L, -1) != LUA_TNUMBER) fail(Errc::usage, "{}[{}] is not a number", name, i);
    out.push_back(lua_tonumber(L, -1));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return out;
}

namespace {

int tolist(lua_State* L) {
  push_elements(L, self_tensor(L));
  return 1;
}

int item(lua_State* L) {
  const Tensor& tensor = self_tensor(L);
  if (tensor.numel() != 1)
    fail(Errc::shape, "item() expects a tensor with one element, got {} elements", tensor.numel());
  push_elements(L, tensor.reshape({}));
  return 1;
}

/// A number; integers beyond 2^53 become int64 or uint64, larger ones a Value.
void push_number(lua_State* L, const Number& number) {
  if (const double* real = std::get_if<double>(&number)) return lua_pushnumber(L, *real);
  const Wide whole = std::get<Wide>(number);
  if (static_cast<int64_t>(whole) == whole) return push_integer(L, static_cast<int64_t>(whole));
  if (static_cast<uint64_t>(whole) == whole) return push_unsigned(L, static_cast<uint64_t>(whole));
  push_raw(L, Value::integer(fmt::to_string(whole)));
}

void set_number(lua_State* L, const char* name, const std::optional<Number>& number) {
  if (!number) return;
  push_number(L, *number);
  lua_setfield(L, -2, name);
}

void set_numbers(lua_State* L, const char* name, const auto& numbers) {
  lua_createtable(L, static_cast<int>(numbers.size()), 0);
  for (size_t i = 0; i < numbers.size(); ++i) {
    lua_pushnumber(L, static_cast<double>(numbers[i]));
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  lua_setfield(L, -2, name);
}

/// `t:stats { quantiles =, bins = }`
int stats(lua_State* L) {
  const Options options(L, 2, {"quantiles", "bins"});
  const std::vector<double> shares = numbers_of(L, options, "quantiles");
  const auto bins = options.integer("bins", 1, 1 << 16);
  const Statistics statistics = cbk::statistics(self_tensor(L), !shares.empty() || bins);
  lua_createtable(L, 0, 12);
  set_number(L, "min", statistics.min);
  set_number(L, "max", statistics.max);
  set_number(L, "mean", statistics.mean);
  set_number(L, "std", statistics.std);
  set_number(L, "norm", statistics.norm);
  set_integer(L, "nan", static_cast<uint64_t>(statistics.nan));
  set_integer(L, "inf", static_cast<uint64_t>(statistics.inf));
  set_integer(L, "zeros", static_cast<uint64_t>(statistics.zeros));
  set_integer(L, "subnormal", static_cast<uint64_t>(statistics.subnormal));
  set_integer(L, "numel", static_cast<uint64_t>(statistics.numel));
  if (options.has("quantiles")) set_numbers(L, "quantiles", statistics.distribution.quantiles(shares));
  if (bins) {
    const Histogram histogram = statistics.distribution.histogram(*bins);
    lua_createtable(L, 0, 2);
    set_numbers(L, "edges", histogram.edges);
    set_numbers(L, "counts", histogram.counts);
    lua_setfield(L, -2, "histogram");
  }
  return 1;
}

/// The field `name` of a table: one number of each cell.
void set_cells(lua_State* L, const char* name, const Grid& grid, const auto& of) {
  std::vector<double> numbers;
  numbers.reserve(grid.cells.size());
  for (const GridCell& cell : grid.cells) numbers.push_back(static_cast<double>(of(cell)));
  set_numbers(L, name, numbers);
}

/// `t:grid { rows =, columns = }`
int grid_of(lua_State* L) {
  const Options options(L, 2, {"rows", "columns"});
  constexpr int64_t most = 1 << 12;
  const Grid found = cbk::grid(self_tensor(L), options.integer("rows", 1, most).value_or(64),
                               options.integer("columns", 1, most).value_or(64));
  lua_createtable(L, 0, 8);
  set_integer(L, "rows", static_cast<uint64_t>(found.rows));
  set_integer(L, "columns", static_cast<uint64_t>(found.columns));
  set_cells(L, "mean", found, [](const GridCell& cell) { return cell.mean; });
  set_cells(L, "rms", found, [](const GridCell& cell) { return cell.rms; });
  set_cells(L, "min", found, [](const GridCell& cell) { return cell.min; });
  set_cells(L, "max", found, [](const GridCell& cell) { return cell.max; });
  set_cells(L, "nan", found, [](const GridCell& cell) { return cell.nan; });
  set_cells(L, "inf", found, [](const GridCell& cell) { return cell.inf; });
  return 1;
}

/// `a:compare(b, { rtol =, atol =, largest = })`: the differences of two tensors of one shape.
int compare_with(lua_State* L) {
  const Options options(L, 3, {"rtol", "atol", "largest"});
  const Tolerance tolerance{options.number("rtol", 0), options.number("atol", 0)};
  const auto most = static_cast<size_t>(options.integer("largest", 0, 1000).value_or(0));
  const Difference difference =
      cbk::compare(self_tensor(L), check<const TensorLeaf>(L, 2)->tensor, tolerance, most);
  lua_createtable(L, 0, 12);
  set_integer(L, "numel", static_cast<uint64_t>(difference.numel));
  set_integer(L, "different", static_cast<uint64_t>(difference.different));
  if (difference.different > 0) set_integer(L, "first", static_cast<uint64_t>(difference.first));
  push_number(L, difference.max_absolute);
  lua_setfield(L, -2, "max_abs");
  set_number(L, "max_rel", difference.max_relative);
  set_integer(L, "nan_a", static_cast<uint64_t>(difference.nan_a));
  set_integer(L, "nan_b", static_cast<uint64_t>(difference.nan_b));
  set_integer(L, "infinite", static_cast<uint64_t>(difference.infinite));
  set_boolean(L, "same_bits", difference.same_bits);
  if (difference.relative_norm) set_number(L, "rel_norm", *difference.relative_norm);
  if (difference.cosine) set_number(L, "cosine", *difference.cosine);
  lua_createtable(L, static_cast<int>(difference.largest.size()), 0);
  for (size_t i = 0; i < difference.largest.size(); ++i) {
    lua_pushnumber(L, static_cast<double>(difference.largest[i].position));
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  lua_setfield(L, -2, "largest");
  return 1;
}

/// The dtypes that the option `name` lists.
std::vector<DType> dtypes_of(lua_State* L, const Options& options, const char* name) {
  std::vector<DType> out;
  if (!options.has(name)) return out;
  options.push(name);
  if (!lua_istable(L, -1)) fail(Errc::usage, "scan: expected a list of dtypes as {}", name);
  for (size_t i = 1; i <= lua_objlen(L, -1); ++i) {
    lua_rawgeti(L, -1, static_cast<int>(i));
    if (lua_type(L, -1) != LUA_TSTRING) fail(Errc::usage, "scan: {}[{}] is not the name of a dtype", name, i);
    out.push_back(parse_dtype(lua_tostring(L, -1)));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return out;
}

/// The field `name`: { count =, { first, last }, … } of runs, if there are any.
void set_runs(lua_State* L, const char* name, const Runs& runs) {
  if (runs.count == 0) return;
  lua_createtable(L, static_cast<int>(runs.first.size()), 1);
  set_integer(L, "count", static_cast<uint64_t>(runs.count));
  for (size_t i = 0; i < runs.first.size(); ++i) {
    lua_createtable(L, 2, 0);
    lua_pushnumber(L, static_cast<double>(runs.first[i].first));
    lua_rawseti(L, -2, 1);
    lua_pushnumber(L, static_cast<double>(runs.first[i].second));
    lua_rawseti(L, -2, 2);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  lua_setfield(L, -2, name);
}

void set_sizes(lua_State* L, const Scan& scan) {
  const auto count = static_cast<double>(std::max<int64_t>(scan.sums->count, 1));
  set_number(L, "mean", scan.sums->sum / count);
  set_number(L, "rms", std::sqrt(scan.sums->squares / count));
  if (!scan.rows) return;
  lua_createtable(L, 0, 7);
  set_integer(L, "rows", static_cast<uint64_t>(scan.rows->rows));
  set_integer(L, "columns", static_cast<uint64_t>(scan.rows->columns));
  set_number(L, "median", scan.rows->median);
  set_runs(L, "zero", scan.rows->zero);
  set_runs(L, "quiet", scan.rows->quiet);
  set_runs(L, "repeated", scan.rows->repeated);
  set_runs(L, "zero_columns", scan.rows->zero_columns);
  lua_setfield(L, -2, "odd_rows");
}

/// `t:scan { dtypes =, quiet = }`: checks of the elements.
int scan(lua_State* L) {
  const Options options(L, 2, {"dtypes", "quiet"});
  const std::vector<DType> dtypes = dtypes_of(L, options, "dtypes");
  const Tensor& tensor = self_tensor(L);
  std::optional<double> quiet;
  if (options.has("quiet")) quiet = options.number("quiet", 0);
  const Scan scan = cbk::scan(tensor, dtypes, quiet);
  lua_createtable(L, 0, 12);
  for (const auto& [name, count] : {std::pair{"numel", scan.numel}, {"nan", scan.nan}, {"inf", scan.inf}}) {
    set_integer(L, name, static_cast<uint64_t>(count));
  }
  if (scan.nan > 0) set_integer(L, "first_nan", static_cast<uint64_t>(scan.first_nan));
  if (scan.inf > 0) set_integer(L, "first_inf", static_cast<uint64_t>(scan.first_inf));
  if (scan.constant) {
    push_elements(L, Tensor::from_bytes(tensor.dtype(), {}, *scan.constant));
    lua_setfield(L, -2, "constant");
  }
  set_field(L, "fingerprint", fmt::format("{:016x}", scan.fingerprint));
  if (scan.sums) set_sizes(L, scan);
  if (scan.sums || !dtypes.empty()) set_number(L, "largest", scan.largest);
  if (dtypes.empty()) return 1;
  lua_createtable(L, 0, static_cast<int>(dtypes.size()));
  for (size_t i = 0; i < dtypes.size(); ++i) {
    lua_createtable(L, 0, 3);
    set_integer(L, "overflowed", static_cast<uint64_t>(scan.losses[i].overflowed));
    set_integer(L, "changed", static_cast<uint64_t>(scan.losses[i].changed));
    set_integer(L, "vanished", static_cast<uint64_t>(scan.losses[i].vanished));
    lua_setfield(L, -2, std::string(name_of(dtypes[i])).c_str());
  }
  lua_setfield(L, -2, "losses");
  return 1;
}

int tensor_hex(lua_State* L) {
  constexpr uint64_t limit = 16ULL << 20;
  push(L, std::string_view(to_hex(self_tensor(L).to_bytes(limit))));
  return 1;
}

int sha256(lua_State* L) {
  push(L, std::string_view(cbk::sha256(self_tensor(L))));
  return 1;
}

int content(lua_State* L) {
  push_unsigned(L, cbk::content(self_tensor(L)));
  return 1;
}

const char* pointer_type(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return "const bool *";
    case DType::int8:
      return "const int8_t *";
    case DType::int16:
      return "const int16_t *";
    case DType::int32:
      return "const int32_t *";
    case DType::int64:
      return "const int64_t *";
    case DType::uint32:
      return "const uint32_t *";
    case DType::uint64:
      return "const uint64_t *";
    case DType::float32:
      return "const float *";
    case DType::float64:
      return "const double *";
    case DType::complex64:
      return "const complex float *";
    case DType::complex128:
      return "const complex double *";
    default:
      return size_of(dtype) == 2 ? "const uint16_t *" : "const uint8_t *";  // narrow floats as their bits
  }
}

int ptr(lua_State* L) {
  auto anchor = std::make_shared<Anchor>();
  anchor->tensor = self_tensor(L);
  const View* view = anchor->tensor.view();
  const ByteView mapped = view != nullptr && view->strides == contiguous_strides(view->shape)
                              ? view->storage->view()
                              : ByteView();
  const std::byte* address = nullptr;
  if (!mapped.empty()) {
    address = mapped.data() + static_cast<uint64_t>(view->offset) * size_of(view->dtype);
  } else {
    anchor->copy = anchor->tensor.to_bytes();
    address = anchor->copy.data();
  }
  push_pointer(L, pointer_type(anchor->tensor.dtype()), address);
  push(L, std::move(anchor));
  return 2;
}

}  // namespace

const luaL_Reg tensor_reading[] = {{"tolist", guarded<tolist>},
                                   {"item", guarded<item>},
                                   {"stats", guarded<stats>},
                                   {"grid", guarded<grid_of>},
                                   {"compare", guarded<compare_with>},
                                   {"scan", guarded<scan>},
                                   {"hex", guarded<tensor_hex>},
                                   {"sha256", guarded<sha256>},
                                   {"ptr", guarded<ptr>},
                                   {"content", guarded<content>},
                                   {nullptr, nullptr}};

void register_reading(lua_State* L) {
  register_type<Anchor>(L, {});
}

}  // namespace cbk::lua
