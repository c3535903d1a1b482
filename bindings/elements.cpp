#include "bindings/elements.hpp"

#include <array>
#include <cmath>

#include "host/base/bytes.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk::lua {
namespace {

constexpr uint64_t max_elements = 1ULL << 24;
constexpr uint64_t max_lists = max_elements / 4;

/// The dtype for conversions: integers keep all 64 bits; other numbers go through float64, which holds every
/// narrower float.
DType wide(DType dtype) {
  if (dtype == DType::uint64) return DType::uint64;
  if (dtype == DType::boolean || is_integer(dtype)) return DType::int64;
  return is_complex(dtype) ? DType::complex128 : DType::float64;
}

void push_element(lua_State* L, DType dtype, const std::byte* wide_element) {
  switch (wide(dtype)) {
    case DType::int64:
      if (dtype == DType::boolean) {
        lua_pushboolean(L, load_le<int64_t>(wide_element) != 0);
      } else {
        push_integer(L, load_le<int64_t>(wide_element));
      }
      return;
    case DType::uint64:
      return push_unsigned(L, load_le<uint64_t>(wide_element));
    case DType::complex128:
      lua_createtable(L, 2, 0);
      for (int part = 0; part < 2; ++part) {
        lua_pushnumber(L, load_le<double>(wide_element + static_cast<ptrdiff_t>(part) * 8));
        lua_rawseti(L, -2, part + 1);
      }
      return;
    default:
      lua_pushnumber(L, load_le<double>(wide_element));
  }
}

/// Pushes dims `dim`… of the block at `next` and advances `next`.
void push_nested(lua_State* L, const Tensor& tensor, size_t dim, const std::byte*& next) {
  if (dim == tensor.shape().size()) {
    push_element(L, tensor.dtype(), next);
    next += size_of(wide(tensor.dtype()));
    return;
  }
  luaL_checkstack(L, 8, "too many dims");
  const auto extent = static_cast<int>(tensor.shape()[dim]);
  lua_createtable(L, extent, 0);
  for (int i = 1; i <= extent; ++i) {
    push_nested(L, tensor, dim + 1, next);
    lua_rawseti(L, -2, i);
  }
}

/// Collects nested lists: the shape from the first item of each level, and every element in its wide form.
class Collector {
 public:
  Collector(lua_State* L, DType dtype) : L_(L), dtype_(dtype) {}

  Tensor collect(int index) {
    if (is_complex(dtype_) && lua_istable(L_, index)) {
      fail(Errc::usage, "complex elements ({{re, im}} or numbers) need a flat list and the option 'shape'");
    }
    add(index, 0);
    return finish(shape_);
  }

  Tensor finish(const Shape& shape) {
    const auto count = static_cast<int64_t>(bytes_.size() / size_of(wide(dtype_)));
    Bytes out(static_cast<size_t>(count) * size_of(dtype_));
    if (wide(dtype_) == dtype_) {
      out = std::move(bytes_);
    } else {
      const Losses lost = cast_elements(wide(dtype_), bytes_.data(), dtype_, out.data(), count);
      if (lost.overflowed > 0) fail_overflow(count);
    }
    return Tensor::from_bytes(dtype_, shape, std::move(out));
  }

  void add_scalar(int index) {
    switch (wide(dtype_)) {
      case DType::uint64:
        return append(unsigned_at(index));
      case DType::int64:
        return append(integer_at(index));
      case DType::complex128:
        return add_complex(index);
      default:
        return append(number_at(index));
    }
  }

 private:
  void add(int index, size_t dim) {
    if (const auto list = test<Sequence>(L_, index)) {
      enter(dim, list->items.size());
      for (const Value& item : list->items) {
        push(L_, item);
        add(lua_gettop(L_), dim + 1);
        lua_pop(L_, 1);
      }
    } else if (lua_istable(L_, index)) {
      luaL_checkstack(L_, 8, "lists nested too deeply");
      const size_t count = lua_objlen(L_, index);
      enter(dim, count);
      for (size_t i = 1; i <= count; ++i) {
        lua_rawgeti(L_, index, static_cast<int>(i));
        add(lua_gettop(L_), dim + 1);
        lua_pop(L_, 1);
      }
    } else {
      if (depth_ == unknown) depth_ = dim;
      if (dim != depth_) fail(Errc::shape, "expected lists of the same depth everywhere");
      add_scalar(index);
    }
  }

  void enter(size_t dim, size_t extent) {
    if (dim >= 64) fail(Errc::shape, "a tensor has at most 64 dims");
    if (++list_count_ > max_lists) {  // empty lists can be shared, and so be many
      fail(Errc::value,
           "the elements are nested in more than {} lists; give a flat list and the option 'shape'",
           max_lists);
    }
    if (dim < depth_ && dim == shape_.size()) {
      shape_.push_back(static_cast<int64_t>(extent));
      if (extent == 0) depth_ = dim + 1;
    }
    if (dim >= shape_.size()) fail(Errc::shape, "expected lists of the same depth everywhere");
    if (shape_[dim] != static_cast<int64_t>(extent)) {
      fail(Errc::shape, "expected lists of the same length at depth {}, got {} and {}", dim + 1, shape_[dim],
           extent);
    }
  }

  double number_at(int index) {
    if (lua_isboolean(L_, index)) return lua_toboolean(L_, index);
    if (lua_type(L_, index) == LUA_TNUMBER) return lua_tonumber(L_, index);
    if (is_int64(L_, index)) return static_cast<double>(static_cast<int64_t>(cdata_bits(L_, index)));
    if (is_uint64(L_, index)) return static_cast<double>(cdata_bits(L_, index));
    if (const auto value = test<const Value>(L_, index)) return value->as_double();
    fail(Errc::value, "a number expected among the elements, got {}", type_name(L_, index));
  }

  int64_t integer_at(int index) {
    if (lua_isboolean(L_, index)) return lua_toboolean(L_, index);
    const auto value = to_integer(L_, index);
    if (!value) {
      fail(Errc::value, "{} cannot be an element of a tensor of {}", printed(index), name_of(dtype_));
    }
    check_range(*value);
    return *value;
  }

  uint64_t unsigned_at(int index) {
    if (is_uint64(L_, index)) return cdata_bits(L_, index);
    const int64_t value = integer_at(index);
    if (value < 0) fail(Errc::value, "{} does not fit uint64", value);
    return static_cast<uint64_t>(value);
  }

  /// A number, or {re, im}.
  void add_complex(int index) {
    if (!lua_istable(L_, index)) {
      append(number_at(index));
      append(0.0);
      return;
    }
    if (lua_objlen(L_, index) != 2) fail(Errc::value, "expected a complex element as a number or {{re, im}}");
    for (int part = 1; part <= 2; ++part) {
      lua_rawgeti(L_, index, part);
      append(number_at(lua_gettop(L_)));
      lua_pop(L_, 1);
    }
  }

  /// Fails with the first finite number that the dtype makes infinite or NaN.
  [[noreturn]] void fail_overflow(int64_t count) const {
    const bool is_pair = is_complex(dtype_);
    const DType part = dtype_ == DType::complex64 ? DType::float32 : dtype_;
    const std::byte* number = bytes_.data();
    std::array<std::byte, sizeof(double)> out{};
    for (int64_t i = 0; i < (is_pair ? 2 : 1) * count; ++i, number += sizeof(double)) {
      if (cast_elements(DType::float64, number, part, out.data(), 1).overflowed > 0)
        fail(Errc::value, "{} does not fit {}", load_le<double>(number), name_of(dtype_));
    }
    fail(Errc::internal, "no element overflows {}", name_of(dtype_));
  }

  void check_range(int64_t value) const {
    const auto bits = static_cast<int>(size_of(dtype_) * 8);
    if (dtype_ == DType::boolean || bits == 64) return;
    const bool is_unsigned = dtype_ == DType::uint8 || dtype_ == DType::uint16 || dtype_ == DType::uint32;
    const int64_t min = is_unsigned ? 0 : -(int64_t{1} << (bits - 1));
    const int64_t max = (int64_t{1} << (is_unsigned ? bits : bits - 1)) - 1;
    if (value < min || value > max) fail(Errc::value, "{} does not fit {}", value, name_of(dtype_));
  }

  std::string printed(int index) const {
    return lua_type(L_, index) == LUA_TNUMBER ? fmt::format("{}", lua_tonumber(L_, index))
                                              : type_name(L_, index);
  }

  template <typename T>
  void append(T value) {
    if (bytes_.size() / size_of(wide(dtype_)) > max_elements) {
      fail(Errc::value, "Lua lists can give at most {} elements", max_elements);
    }
    const size_t size = bytes_.size();
    bytes_.resize(size + sizeof value);
    store_le(bytes_.data() + size, value);
  }

  static constexpr size_t unknown = SIZE_MAX;
  lua_State* L_;
  DType dtype_;
  Shape shape_;
  size_t depth_ = unknown;
  size_t list_count_ = 0;
  Bytes bytes_;
};

Tensor collect_flat(lua_State* L, int index, DType dtype, const Shape& shape) {
  Collector collector(L, dtype);
  const auto list = test<Sequence>(L, index);
  if (!list && !lua_istable(L, index)) fail_type(L, index, "list of elements");
  const size_t count = list ? list->items.size() : lua_objlen(L, index);
  if (static_cast<int64_t>(count) != numel_of(shape)) {
    fail(Errc::shape, "expected {} elements for shape {}, got {}", numel_of(shape), to_string(shape), count);
  }
  for (size_t i = 0; i < count; ++i) {
    if (list) {
      push(L, list->items[i]);
    } else {
      lua_rawgeti(L, index, static_cast<int>(i + 1));
    }
    collector.add_scalar(lua_gettop(L));
    lua_pop(L, 1);
  }
  return collector.finish(shape);
}

}  // namespace

void push_elements(lua_State* L, const Tensor& tensor) {
  if (static_cast<uint64_t>(tensor.numel()) > max_elements) {
    fail(Errc::value, "expected at most {1} elements, got {0}; slice the tensor first", tensor.numel(),
         max_elements);
  }
  const Bytes source = tensor.to_bytes();
  const DType to = wide(tensor.dtype());
  Bytes elements(static_cast<size_t>(tensor.numel()) * size_of(to));
  cast_elements(tensor.dtype(), source.data(), to, elements.data(), tensor.numel());
  const std::byte* next = elements.data();
  push_nested(L, tensor, 0, next);
}

Tensor tensor_from(lua_State* L, int index, DType dtype, const std::optional<Shape>& shape) {
  if (lua_isnoneornil(L, index)) fail_type(L, index, "number or list of numbers");
  return shape ? collect_flat(L, index, dtype, *shape) : Collector(L, dtype).collect(index);
}

std::vector<Tensor> check_tensors(lua_State* L, int index) {
  std::vector<Tensor> out;
  if (const auto list = test<Sequence>(L, index)) {
    for (const Value& item : list->items) out.push_back(item.as_tensor());
    return out;
  }
  if (!lua_istable(L, index)) fail_type(L, index, "list of tensors");
  const auto count = static_cast<int>(lua_objlen(L, index));
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, index, i);
    const auto leaf = test<const TensorLeaf>(L, -1);
    if (!leaf)
      fail_argument(L, index, fmt::format("tensors expected, got {} at position {}", type_name(L, -1), i));
    out.push_back(leaf->tensor);
    lua_pop(L, 1);
  }
  return out;
}

std::vector<double> check_numbers(lua_State* L, int index) {
  std::vector<double> out;
  if (!lua_istable(L, index)) fail_type(L, index, "list of numbers");
  const auto count = static_cast<int>(lua_objlen(L, index));
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, index, i);
    if (lua_type(L, -1) != LUA_TNUMBER)
      fail_argument(L, index, fmt::format("numbers expected, got {} at position {}", type_name(L, -1), i));
    out.push_back(lua_tonumber(L, -1));
    lua_pop(L, 1);
  }
  return out;
}

Bytes element_bytes(lua_State* L, int index, DType dtype) {
  if (lua_isnoneornil(L, index)) fail_type(L, index, "number");
  Collector collector(L, dtype);
  collector.add_scalar(index);
  return collector.finish({}).to_bytes();
}

}  // namespace cbk::lua
