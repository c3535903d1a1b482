// Tensor: a lazy tensor expression. Every method that makes one returns at once; only tolist, item, stats,
// hex, sha256 and ptr read.
#include <algorithm>

#include "bindings/elements.hpp"
#include "bindings/kind.hpp"
#include "bindings/modules.hpp"
#include "host/tensor/compare.hpp"
#include "host/tensor/summary.hpp"

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

namespace {

using LeafPtr = std::shared_ptr<const TensorLeaf>;

const Tensor& self(lua_State* L) {
  return check<const TensorLeaf>(L, 1)->tensor;
}

/// A new tensor made from the one at position 1: an ndarray stays an ndarray, a parameter becomes a tensor.
int result(lua_State* L, Tensor tensor) {
  const auto source = test<const TensorLeaf>(L, 1);
  TensorLeaf leaf{std::move(tensor)};
  const bool is_numpy =
      source && (source->role == TensorLeaf::Role::ndarray || source->role == TensorLeaf::Role::np_scalar);
  if (is_numpy) leaf.role = TensorLeaf::Role::ndarray;
  push(L, LeafPtr(std::make_shared<const TensorLeaf>(std::move(leaf))));
  return 1;
}

// --- facts

int shape(lua_State* L) {
  push_integers(L, self(L).shape());
  return 1;
}

int numel(lua_State* L) {
  push_integer(L, self(L).numel());
  return 1;
}

int dim(lua_State* L) {
  push_integer(L, self(L).dim());
  return 1;
}

int nbytes(lua_State* L) {
  push_unsigned(L, self(L).nbytes());
  return 1;
}

int storage(lua_State* L) {
  const View* view = self(L).view();
  if (view == nullptr) return 0;
  const uint32_t itemsize = size_of(view->dtype);
  const Storage::Place place = view->storage->place();
  lua_createtable(L, 0, 6);
  // The address tells who shares with whom; user-space addresses are exact as numbers.
  set_integer(L, "id", reinterpret_cast<uintptr_t>(view->storage.get()));
  set_integer(L, "offset", static_cast<uint64_t>(view->offset));
  set_integer(L, "numel", view->storage->size() / itemsize);
  push_integers(L, view->strides);
  lua_setfield(L, -2, "stride");
  if (!place.file.empty()) {
    set_field(L, "file", place.file);
    set_integer(L, "position", place.offset + static_cast<uint64_t>(view->offset) * itemsize);
  }
  return 1;
}

/// The id alone, for those who ask it of every tensor.
int storage_id(lua_State* L) {
  const View* view = self(L).view();
  if (view == nullptr) return 0;
  lua_pushnumber(L, static_cast<double>(reinterpret_cast<uintptr_t>(view->storage.get())));
  return 1;
}

/// `dtype, role, shape, numel, nbytes, storage_id`: in one call, for those who ask for them of every tensor.
int facts(lua_State* L) {
  const auto leaf = check<const TensorLeaf>(L, 1);
  push(L, name_of(leaf->tensor.dtype()));
  push(L, role_name(leaf->role));
  push_integers(L, leaf->tensor.shape());
  push_integer(L, leaf->tensor.numel());
  push_unsigned(L, leaf->tensor.nbytes());
  return 5 + storage_id(L);
}

/// The element that a constant tensor repeats, or nil for any other tensor.
int fill(lua_State* L) {
  const auto element = self(L).fill();
  if (!element) return 0;
  push_elements(L, Tensor::from_bytes(self(L).dtype(), {}, *element));
  return 1;
}

int same(lua_State* L) {
  lua_pushboolean(L, self(L).same_data(check<const TensorLeaf>(L, 2)->tensor));
  return 1;
}

/// The extent of the first dim.
int64_t rows_of(const Tensor& tensor) {
  if (tensor.dim() == 0) fail(Errc::shape, "a tensor without dims has no rows; its element is t:item()");
  return tensor.shape().front();
}

/// The row at a position that exists, from 1: a tensor, or the element of a tensor with one dim.
int push_row(lua_State* L, int64_t position) {
  const Tensor& tensor = self(L);
  const Shape rest(tensor.shape().begin() + 1, tensor.shape().end());
  Tensor row = tensor.slice(0, position - 1, position).reshape(rest);
  if (!rest.empty()) return result(L, std::move(row));
  push_elements(L, row);
  return 1;
}

int row_at(lua_State* L, int64_t position) {
  const int64_t count = rows_of(self(L));
  if (position < 1 || position > count) {
    fail(Errc::shape, "there is no row {} in a tensor of the shape {}; rows count from 1", position,
         to_string(self(L).shape()));
  }
  return push_row(L, position);
}

int tensor_len(lua_State* L) {
  push_integer(L, rows_of(self(L)));
  return 1;
}

/// Takes the tensor and the position before: the next position and its row, or nothing.
int next_row(lua_State* L) {
  const int64_t position = check_integer(L, 2);
  const int64_t count = rows_of(self(L));
  if (position < 0 || position >= count) return 0;
  push_integer(L, position + 1);
  return 1 + push_row(L, position + 1);
}

/// `for i, row in t:rows() do`
int rows(lua_State* L) {
  rows_of(self(L));
  lua_pushcfunction(L, guarded<next_row>);
  lua_pushvalue(L, 1);
  lua_pushnumber(L, 0);
  return 3;
}

int refuse_assignment(lua_State*) {
  fail(Errc::usage, "a tensor cannot be changed; methods and operators make a new one");
}

int tensor_index(lua_State* L) {
  const auto leaf = check<const TensorLeaf>(L, 1);
  if (const auto position = to_integer(L, 2)) return row_at(L, *position);
  if (lua_type(L, 2) != LUA_TSTRING) {
    fail(Errc::usage, "a Tensor is indexed by whole numbers from 1 or by names, not by a {}",
         type_name(L, 2));
  }
  const std::string_view key = check_string(L, 2);
  if (key == "dtype") {
    push(L, name_of(leaf->tensor.dtype()));
  } else if (key == "role") {
    push(L, role_name(leaf->role));
  } else if (key == "requires_grad") {
    lua_pushboolean(L, leaf->requires_grad);
  } else {
    lua_pushnil(L);
  }
  return 1;
}

int tensor_tostring(lua_State* L) {
  const auto leaf = check<const TensorLeaf>(L, 1);
  const bool is_tensor = leaf->role == TensorLeaf::Role::tensor;
  push(L, std::string_view(fmt::format("Tensor {} {}{}", name_of(leaf->tensor.dtype()),
                                       to_string(leaf->tensor.shape()),
                                       is_tensor ? "" : fmt::format(" ({})", role_name(leaf->role)))));
  return 1;
}

// --- views and arithmetic

int reshape(lua_State* L) {
  return result(L, self(L).reshape(check_integers(L, 2)));
}

int permute(lua_State* L) {
  return result(L, self(L).permute(check_integers(L, 2)));
}

int transpose(lua_State* L) {
  return result(L, self(L).transpose(check_integer(L, 2), check_integer(L, 3)));
}

int slice(lua_State* L) {
  const int64_t start = opt_integer(L, 3, 0);
  const int64_t stop = opt_integer(L, 4, INT64_MAX);
  return result(L, self(L).slice(check_integer(L, 2), start, stop, opt_integer(L, 5, 1)));
}

int64_t dim_at(lua_State* L, int index, const Tensor& tensor) {
  const int64_t value = check_integer(L, index);
  if (value < -tensor.dim() || value >= tensor.dim()) {
    fail(Errc::shape, "dim {} of a tensor with the shape {}", value, to_string(tensor.shape()));
  }
  return value < 0 ? value + tensor.dim() : value;
}

int select(lua_State* L) {
  const Tensor& tensor = self(L);
  const int64_t along = dim_at(L, 2, tensor);
  const int64_t extent = tensor.shape()[static_cast<size_t>(along)];
  int64_t index = check_integer(L, 3);
  if (index < -extent || index >= extent) {
    fail(Errc::shape, "index {} in dim {} of a tensor with the shape {}", index, along,
         to_string(tensor.shape()));
  }
  if (index < 0) index += extent;
  Shape rest = tensor.shape();
  rest.erase(rest.begin() + along);
  return result(L, tensor.slice(along, index, index + 1).reshape(rest));
}

int expand(lua_State* L) {
  return result(L, self(L).expand(check_integers(L, 2)));
}

int flip(lua_State* L) {
  return result(L, self(L).flip(check_integer(L, 2)));
}

int index_select(lua_State* L) {
  return result(L, self(L).index_select(check_integer(L, 2), check_integers(L, 3)));
}

int split(lua_State* L) {
  const Tensor& tensor = self(L);
  const int64_t along = lua_isnoneornil(L, 3) ? 0 : dim_at(L, 3, tensor);
  if (tensor.dim() == 0) fail(Errc::shape, "a tensor without dims cannot be split");
  const int64_t extent = tensor.shape()[static_cast<size_t>(along)];
  std::vector<int64_t> sizes;
  if (const auto size = to_integer(L, 2)) {
    if (*size <= 0) fail_argument(L, 2, "the size of a part must be positive");
    for (int64_t at = 0; at < extent; at += *size) sizes.push_back(std::min(*size, extent - at));
  } else {
    sizes = check_integers(L, 2);
  }
  int64_t total = 0;
  for (const int64_t size : sizes) {
    if (size < 0 || size > extent - total) total = extent;  // too much: told below
    total += size < 0 ? 1 : size;
  }
  if (total != extent) {
    fail(Errc::shape, "parts {} do not fill dim {} of the shape {}", to_string(sizes), along,
         to_string(tensor.shape()));
  }
  lua_createtable(L, static_cast<int>(sizes.size()), 0);
  int64_t at = 0;
  int position = 0;
  for (const int64_t size : sizes) {
    result(L, tensor.slice(along, at, at + size));
    lua_rawseti(L, -2, ++position);
    at += size;
  }
  return 1;
}

int to(lua_State* L) {
  return result(L, self(L).cast(check_dtype(L, 2)));
}

int affine(lua_State* L) {
  const double term = lua_isnoneornil(L, 3) ? 0 : check_number(L, 3);
  return result(L, self(L).affine(check_number(L, 2), term));
}

int replace_nan(lua_State* L) {
  return result(L, self(L).replace_nan(check_number(L, 2)));
}

int add(lua_State* L) {
  return result(L, self(L).add(check<const TensorLeaf>(L, 2)->tensor));
}

int matmul(lua_State* L) {
  return result(L, self(L).matmul(check<const TensorLeaf>(L, 2)->tensor));
}

/// `t:as{ role =, requires_grad = }`: the same data in another role, as a new leaf.
int as(lua_State* L) {
  const auto source = check<const TensorLeaf>(L, 1);
  const Options options(L, 2, {"role", "requires_grad"});
  TensorLeaf leaf = *source;
  const std::string role = options.text("role", role_name(leaf.role));
  using Role = TensorLeaf::Role;
  const Role roles[] = {Role::tensor, Role::parameter, Role::ndarray, Role::np_scalar};
  const auto* found =
      std::find_if(std::begin(roles), std::end(roles), [&](Role r) { return role_name(r) == role; });
  if (found == std::end(roles)) {
    fail(Errc::usage, "unknown role {}; known: tensor, parameter, ndarray, np_scalar", quote(role));
  }
  leaf.role = *found;
  const bool can_require = leaf.role == Role::tensor || leaf.role == Role::parameter;
  leaf.requires_grad = options.flag("requires_grad", can_require && leaf.requires_grad);
  push(L, LeafPtr(std::make_shared<const TensorLeaf>(std::move(leaf))));
  return 1;
}

// --- operators

int operator_add(lua_State* L) {
  const auto a = test<const TensorLeaf>(L, 1);
  const auto b = test<const TensorLeaf>(L, 2);
  if (a && b) return result(L, a->tensor.add(b->tensor));
  return result(L, a ? a->tensor.affine(1, check_number(L, 2)) : b->tensor.affine(1, check_number(L, 1)));
}

int operator_sub(lua_State* L) {
  const auto a = test<const TensorLeaf>(L, 1);
  const auto b = test<const TensorLeaf>(L, 2);
  if (a && b) return result(L, a->tensor.add(b->tensor.affine(-1, 0)));
  return result(L, a ? a->tensor.affine(1, -check_number(L, 2)) : b->tensor.affine(-1, check_number(L, 1)));
}

int operator_mul(lua_State* L) {
  const auto a = test<const TensorLeaf>(L, 1);
  const auto b = test<const TensorLeaf>(L, 2);
  if (a && b) return result(L, a->tensor.multiply(b->tensor));
  return result(L, a ? a->tensor.affine(check_number(L, 2), 0) : b->tensor.affine(check_number(L, 1), 0));
}

int operator_div(lua_State* L) {
  const auto a = test<const TensorLeaf>(L, 1);
  if (!a || is<const TensorLeaf>(L, 2)) fail(Errc::usage, "a tensor can be divided by a number only");
  return result(L, a->tensor.affine(1 / check_number(L, 2), 0));
}

int operator_neg(lua_State* L) {
  return result(L, self(L).affine(-1, 0));
}

// --- reading

int tolist(lua_State* L) {
  push_elements(L, self(L));
  return 1;
}

int item(lua_State* L) {
  const Tensor& tensor = self(L);
  if (tensor.numel() != 1) fail(Errc::shape, "item() of a tensor with {} elements", tensor.numel());
  push_elements(L, tensor.reshape({}));
  return 1;
}

int stats(lua_State* L) {
  const Statistics statistics = cbk::statistics(self(L));
  lua_createtable(L, 0, 8);
  set_number(L, "min", statistics.min);
  set_number(L, "max", statistics.max);
  set_number(L, "mean", statistics.mean);
  set_number(L, "std", statistics.std);
  set_integer(L, "nan", static_cast<uint64_t>(statistics.nan));
  set_integer(L, "inf", static_cast<uint64_t>(statistics.inf));
  set_integer(L, "zeros", static_cast<uint64_t>(statistics.zeros));
  set_integer(L, "numel", static_cast<uint64_t>(statistics.numel));
  return 1;
}

/// `a:compare(b, { rtol =, atol = })`: how two tensors of one shape differ.
int compare_with(lua_State* L) {
  const Options options(L, 3, {"rtol", "atol"});
  const Tolerance tolerance{options.number("rtol", 0), options.number("atol", 0)};
  const Difference difference = cbk::compare(self(L), check<const TensorLeaf>(L, 2)->tensor, tolerance);
  lua_createtable(L, 0, 6);
  set_integer(L, "numel", static_cast<uint64_t>(difference.numel));
  set_integer(L, "different", static_cast<uint64_t>(difference.different));
  if (difference.different > 0) set_integer(L, "first", static_cast<uint64_t>(difference.first));
  set_number(L, "max_abs", difference.max_absolute);
  set_number(L, "max_rel", difference.max_relative);
  set_boolean(L, "same_bits", difference.same_bits);
  return 1;
}

int hex(lua_State* L) {
  constexpr uint64_t limit = 16ULL << 20;
  push(L, std::string_view(to_hex(self(L).to_bytes(limit))));
  return 1;
}

int sha256(lua_State* L) {
  push(L, std::string_view(cbk::sha256(self(L))));
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
  anchor->tensor = self(L);
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

void push(lua_State* L, const Tensor& tensor) {
  push(L, LeafPtr(std::make_shared<const TensorLeaf>(TensorLeaf{tensor})));
}

void bind_tensor(lua_State* L) {
  static const luaL_Reg methods[] = {{"shape", guarded<shape>},
                                     {"numel", guarded<numel>},
                                     {"dim", guarded<dim>},
                                     {"rows", guarded<rows>},
                                     {"nbytes", guarded<nbytes>},
                                     {"storage", guarded<storage>},
                                     {"storage_id", guarded<storage_id>},
                                     {"facts", guarded<facts>},
                                     {"fill", guarded<fill>},
                                     {"same", guarded<same>},
                                     {"reshape", guarded<reshape>},
                                     {"permute", guarded<permute>},
                                     {"transpose", guarded<transpose>},
                                     {"slice", guarded<slice>},
                                     {"select", guarded<select>},
                                     {"expand", guarded<expand>},
                                     {"flip", guarded<flip>},
                                     {"index_select", guarded<index_select>},
                                     {"split", guarded<split>},
                                     {"to", guarded<to>},
                                     {"affine", guarded<affine>},
                                     {"replace_nan", guarded<replace_nan>},
                                     {"add", guarded<add>},
                                     {"matmul", guarded<matmul>},
                                     {"as", guarded<as>},
                                     {"tolist", guarded<tolist>},
                                     {"item", guarded<item>},
                                     {"stats", guarded<stats>},
                                     {"compare", guarded<compare_with>},
                                     {"hex", guarded<hex>},
                                     {"sha256", guarded<sha256>},
                                     {"ptr", guarded<ptr>},
                                     {nullptr, nullptr}};
  static const luaL_Reg metamethods[] = {{"__tostring", guarded<tensor_tostring>},
                                         {"__len", guarded<tensor_len>},
                                         {"__newindex", guarded<refuse_assignment>},
                                         {"__add", guarded<operator_add>},
                                         {"__sub", guarded<operator_sub>},
                                         {"__mul", guarded<operator_mul>},
                                         {"__div", guarded<operator_div>},
                                         {"__unm", guarded<operator_neg>},
                                         {nullptr, nullptr}};
  register_type<const TensorLeaf>(L, {methods, metamethods, guarded<tensor_index>});
  register_type<Anchor>(L, {});
}

}  // namespace cbk::lua
