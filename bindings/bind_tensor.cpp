// Tensor: a lazy tensor expression. Methods that make one return immediately; only methods in
// tensor_reading.cpp read data.
#include <algorithm>
#include <array>

#include "bindings/elements.hpp"
#include "bindings/kind.hpp"
#include "bindings/modules.hpp"
#include "bindings/tensor_methods.hpp"
#include "host/tensor/expression.hpp"
#include "host/tensor/packed_storage.hpp"

namespace cbk::lua {

using LeafPtr = std::shared_ptr<const TensorLeaf>;

const Tensor& self_tensor(lua_State* L) {
  return check<const TensorLeaf>(L, 1)->tensor;
}

int push_result(lua_State* L, Tensor tensor) {
  const auto source = test<const TensorLeaf>(L, 1);
  TensorLeaf leaf{std::move(tensor)};
  const bool is_numpy =
      source && (source->role == TensorLeaf::Role::ndarray || source->role == TensorLeaf::Role::np_scalar);
  if (is_numpy) leaf.role = TensorLeaf::Role::ndarray;
  push(L, LeafPtr(std::make_shared<const TensorLeaf>(std::move(leaf))));
  return 1;
}

namespace {

// --- facts

constexpr const char* shape_type = "Shape";

/// A list of integers that prints as one.
int shape(lua_State* L) {
  push_integers(L, self_tensor(L).shape());
  luaL_getmetatable(L, shape_type);
  lua_setmetatable(L, -2);
  return 1;
}

int shape_tostring(lua_State* L) {
  push(L, std::string_view(to_string(check_integers(L, 1))));
  return 1;
}

int numel(lua_State* L) {
  push_integer(L, self_tensor(L).numel());
  return 1;
}

int dim(lua_State* L) {
  push_integer(L, self_tensor(L).dim());
  return 1;
}

int nbytes(lua_State* L) {
  push_unsigned(L, self_tensor(L).nbytes());
  return 1;
}

int storage(lua_State* L) {
  const View* view = self_tensor(L).view();
  if (view == nullptr) return 0;
  const uint32_t itemsize = size_of(view->dtype);
  const Storage::Place place = view->storage->place();
  lua_createtable(L, 0, 6);
  // Equal addresses mean shared storage; user-space addresses are exact as numbers.
  set_integer(L, "id", reinterpret_cast<uintptr_t>(view->storage.get()));
  set_integer(L, "offset", static_cast<uint64_t>(view->offset));
  set_integer(L, "numel", view->storage->size() / itemsize);
  push_integers(L, view->strides);
  lua_setfield(L, -2, "stride");
  if (const Unwritten missing = unwritten(*view->storage); missing.pieces > 0) {
    set_integer(L, "unwritten", missing.pieces);
    set_integer(L, "pieces", missing.of);
  }
  if (const Encoding* encoding = view->storage->encoding()) set_field(L, "encoding", encoding->name);
  if (!place.file.empty()) {
    set_field(L, "file", place.file);
    set_integer(L, "position", place.offset + static_cast<uint64_t>(view->offset) * itemsize);
  }
  return 1;
}

/// The blocks of a tensor that is stored in blocks.
int blocks(lua_State* L) {
  const Encoding* encoding = self_tensor(L).encoding();
  if (encoding == nullptr) return 0;
  const auto bytes = static_cast<int64_t>(encoding->block_bytes);
  Shape shape = {static_cast<int64_t>(encoding->blocks->size()) / bytes, bytes};
  return push_result(L, Tensor::from_view({encoding->blocks, DType::uint8, 0, std::move(shape), {bytes, 1}}));
}

/// The id alone, for callers that need it for every tensor.
int storage_id(lua_State* L) {
  const View* view = self_tensor(L).view();
  if (view == nullptr) return 0;
  lua_pushnumber(L, static_cast<double>(reinterpret_cast<uintptr_t>(view->storage.get())));
  return 1;
}

/// Why the tensor cannot be read; nothing if it can.
int problem(lua_State* L) {
  const std::string_view problem = problem_of(*self_tensor(L).expression());
  if (problem.empty()) return 0;
  push(L, problem);
  return 1;
}

/// The element that a constant tensor repeats, or nil for any other tensor.
int fill(lua_State* L) {
  const auto element = self_tensor(L).fill();
  if (!element) return 0;
  push_elements(L, Tensor::from_bytes(self_tensor(L).dtype(), {}, *element));
  return 1;
}

int is_moved(lua_State* L) {
  lua_pushboolean(L, cbk::is_moved(*self_tensor(L).expression()));
  return 1;
}

int same(lua_State* L) {
  lua_pushboolean(L, self_tensor(L).same_data(check<const TensorLeaf>(L, 2)->tensor));
  return 1;
}

/// The extent of the first dim.
int64_t rows_of(const Tensor& tensor) {
  if (tensor.dim() == 0) fail(Errc::shape, "a tensor without dims has no rows; use t:item() for its element");
  return tensor.shape().front();
}

/// The row at a position that exists, from 1: a tensor, or the element of a tensor with one dim.
int push_row(lua_State* L, int64_t position) {
  const Tensor& tensor = self_tensor(L);
  const Shape rest(tensor.shape().begin() + 1, tensor.shape().end());
  Tensor row = tensor.slice(0, position - 1, position).reshape(rest);
  if (!rest.empty()) return push_result(L, std::move(row));
  push_elements(L, row);
  return 1;
}

int row_at(lua_State* L, int64_t position) {
  const int64_t count = rows_of(self_tensor(L));
  if (position < 1 || position > count) {
    const int64_t meant = position < 0 ? position + count + 1 : 1;
    const bool is_of_python = position < 1 && meant > 0 && count > 0;
    fail(Errc::shape, "row {} is out of range for a tensor of shape {}; Lua counts from 1{}", position,
         to_string(self_tensor(L).shape()),
         is_of_python ? fmt::format(": w[{}] of Python is w[{}]", position, meant) : "");
  }
  return push_row(L, position);
}

int tensor_len(lua_State* L) {
  push_integer(L, rows_of(self_tensor(L)));
  return 1;
}

/// From the tensor and the previous position, returns the next position and its row, or nothing.
int next_row(lua_State* L) {
  const int64_t position = check_integer(L, 2);
  const int64_t count = rows_of(self_tensor(L));
  if (position < 0 || position >= count) return 0;
  push_integer(L, position + 1);
  return 1 + push_row(L, position + 1);
}

/// `for i, row in t:rows() do`
int rows(lua_State* L) {
  rows_of(self_tensor(L));
  lua_pushcfunction(L, guarded<next_row>);
  lua_pushvalue(L, 1);
  lua_pushnumber(L, 0);
  return 3;
}

int refuse_tensor_assignment(lua_State*) {
  fail(Errc::usage, "a tensor cannot be changed; its methods and operators return a new one");
}

/// Where a Tensor has what tensors of other libraries have under this name; empty: nowhere.
std::string place_of_member(std::string_view key) {
  constexpr std::pair<std::string_view, std::string_view> places[] = {
      {"min mean max std norm nan inf zeros subnormal", "t:stats().{} has it"},
      {"amin amax isnan isinf", "t:stats() has min, max, nan and inf"},
      {"abs exp log sqrt clamp lt le gt ge eq argmax softmax relu",
       "a tensor of cstorch has it: require('cstorch').tensor(t)"},
      {"size sizes", "t:shape() lists the sizes"},
      {"ndim", "t:dim() is it"},
      {"sum", "t:stats().mean * t:numel() is it"},
      {"view", "t:reshape(shape) is it"},
      {"T", "t:transpose(0, 1) is it"},
      {"float half double bfloat16", "t:to(dtype) converts it, as in t:to('float32')"},
      {"numpy", "t:tolist() gives the elements"}};
  if (key.find(' ') != std::string_view::npos) return {};
  for (const auto& [names, advice] : places) {
    if (fmt::format(" {} ", names).find(fmt::format(" {} ", key)) != std::string::npos)
      return fmt::format(fmt::runtime(advice), key);
  }
  return {};
}

[[noreturn]] void fail_tensor_member(lua_State* L, std::string_view key) {
  const std::string place = place_of_member(key);
  if (!place.empty()) fail_member("a Tensor", key, {}, place);
  std::vector<std::string> known = method_names(L, 1);
  known.insert(known.end(), {"dtype", "role", "requires_grad"});
  fail_member("a Tensor", key, known);
}

int tensor_index(lua_State* L) {
  const auto leaf = check<const TensorLeaf>(L, 1);
  if (const auto position = to_integer(L, 2)) return row_at(L, *position);
  if (lua_type(L, 2) != LUA_TSTRING) {
    fail(Errc::usage, "a Tensor is indexed by whole numbers from 1 or by names, not by {}",
         lua_type(L, 2) == LUA_TNUMBER ? fmt::format("{}", lua_tonumber(L, 2))
                                       : fmt::format("a {}", type_name(L, 2)));
  }
  const std::string_view key = check_string(L, 2);
  if (key == "dtype") {
    push(L, name_of(leaf->tensor.dtype()));
  } else if (key == "role") {
    push(L, role_name(leaf->role));
  } else if (key == "requires_grad") {
    lua_pushboolean(L, leaf->requires_grad);
  } else {
    fail_tensor_member(L, key);
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

}  // namespace

void push(lua_State* L, const Tensor& tensor) {
  push(L, LeafPtr(std::make_shared<const TensorLeaf>(TensorLeaf{tensor})));
}

void bind_tensor(lua_State* L) {
  static const luaL_Reg own[] = {{"shape", guarded<shape>},
                                 {"numel", guarded<numel>},
                                 {"dim", guarded<dim>},
                                 {"rows", guarded<rows>},
                                 {"nbytes", guarded<nbytes>},
                                 {"storage", guarded<storage>},
                                 {"blocks", guarded<blocks>},
                                 {"storage_id", guarded<storage_id>},
                                 {"problem", guarded<problem>},
                                 {"fill", guarded<fill>},
                                 {"is_moved", guarded<is_moved>},
                                 {"same", guarded<same>},
                                 {"as", guarded<as>},
                                 {nullptr, nullptr}};
  static const luaL_Reg own_metamethods[] = {{"__tostring", guarded<tensor_tostring>},
                                             {"__len", guarded<tensor_len>},
                                             {"__newindex", guarded<refuse_tensor_assignment>},
                                             {nullptr, nullptr}};
  const auto methods = joined({own, tensor_moves, tensor_arithmetic, tensor_reading});
  const auto metamethods = joined({own_metamethods, tensor_operators});
  register_type<const TensorLeaf>(L, {methods.data(), metamethods.data(), guarded<tensor_index>});
  register_reading(L);
  luaL_newmetatable(L, shape_type);
  set_field(L, "__name", shape_type);
  lua_pushcfunction(L, guarded<shape_tostring>);
  lua_setfield(L, -2, "__tostring");
  lua_pop(L, 1);
}

}  // namespace cbk::lua
