// Functions that make tensors: from numbers, constant or random, and by joining several.
#include <unistd.h>

#include "bindings/elements.hpp"
#include "bindings/modules.hpp"
#include "host/tensor/csv.hpp"
#include "host/tensor/expression.hpp"
#include "host/tensor/framed.hpp"

namespace cbk::lua {
namespace {

int make_tensor(lua_State* L) {
  const Options options(L, 2, {"dtype", "shape"});
  std::optional<Shape> shape;
  if (options.has("shape")) {
    options.push("shape");
    shape = check_integers(L, lua_gettop(L));
  }
  push(L, tensor_from(L, 1, options.dtype("dtype", DType::float32), shape));
  return 1;
}

int make_full(lua_State* L) {
  const Options options(L, 3, {"dtype"});
  const DType dtype = options.dtype("dtype", DType::float32);
  push(L, Tensor::full_bytes(dtype, check_integers(L, 1), element_bytes(L, 2, dtype)));
  return 1;
}

/// Random numbers with two parameters (defaults: 0 and 1).
using Distribution = Tensor (*)(DType, Shape, double, double, uint64_t);

int make_random(lua_State* L, Distribution distribution, const char* first, const char* second) {
  const Options options(L, 2, {first, second, "seed", "dtype"});
  const DType dtype = options.dtype("dtype", DType::float32);
  const auto seed = static_cast<uint64_t>(options.integer("seed", 0, INT64_MAX).value_or(0));
  const DType made = dtype == DType::float64 ? dtype : DType::float32;
  const Tensor tensor =
      distribution(made, check_integers(L, 1), options.number(first, 0), options.number(second, 1), seed);
  push(L, tensor.cast(dtype));
  return 1;
}

int make_randn(lua_State* L) {
  return make_random(L, &Tensor::normal, "mean", "std");
}

int make_rand(lua_State* L) {
  return make_random(L, &Tensor::uniform, "low", "high");
}

int make_tril(lua_State* L) {
  const Options options(L, 2, {"dtype"});
  push(L, Tensor::lower_triangle(options.dtype("dtype", DType::float32), check_integers(L, 1)));
  return 1;
}

int cat_tensors(lua_State* L) {
  push(L, Tensor::concat(check_tensors(L, 1), opt_integer(L, 2, 0)));
  return 1;
}

int stack_tensors(lua_State* L) {
  push(L, Tensor::stack(check_tensors(L, 1), opt_integer(L, 2, 0)));
  return 1;
}

/// `cbk.dtype("half")`: its facts, or an error that lists the known names.
int dtype_facts(lua_State* L) {
  const DType dtype = check_dtype(L, 1);
  lua_createtable(L, 0, 4);
  set_field(L, "name", name_of(dtype));
  set_integer(L, "size", size_of(dtype));
  set_boolean(L, "floating", is_floating(dtype));
  set_boolean(L, "integer", is_integer(dtype));
  return 1;
}

/// `cbk.write_csv(path, tensor, { overwrite })`
int csv(lua_State* L) {
  const Options options(L, 3, {"overwrite"});
  const fs::path path = check_path(L, 1);
  write_csv(check<const TensorLeaf>(L, 2)->tensor, path, options.flag("overwrite"));
  return 0;
}

/// `cbk.write_framed(tensor)`: to stdout.
int framed(lua_State* L) {
  write_framed(check<const TensorLeaf>(L, 1)->tensor, stdout);
  return 0;
}

/// `cbk.file_range(tensor)`: the path by which another process opens the file, and the offset; or nothing.
int range_in_file(lua_State* L) {
  const auto range = file_range(check<const TensorLeaf>(L, 1)->tensor);
  if (!range) return 0;
  push(L, std::string_view(fmt::format("/proc/{}/fd/{}", ::getpid(), range->fd)));
  push_unsigned(L, range->offset);
  return 2;
}

/// `cbk.verify_read(tensor)`: after another process has read all of it.
int verify_range(lua_State* L) {
  verify_read(*check<const TensorLeaf>(L, 1)->tensor.expression());
  return 0;
}

}  // namespace

void bind_tensor_functions(lua_State* L) {
  static const luaL_Reg functions[] = {{"tensor", guarded<make_tensor>},
                                       {"full", guarded<make_full>},
                                       {"randn", guarded<make_randn>},
                                       {"rand", guarded<make_rand>},
                                       {"tril", guarded<make_tril>},
                                       {"cat", guarded<cat_tensors>},
                                       {"stack", guarded<stack_tensors>},
                                       {"dtype", guarded<dtype_facts>},
                                       {"write_csv", guarded<csv>},
                                       {"write_framed", guarded<framed>},
                                       {"file_range", guarded<range_in_file>},
                                       {"verify_read", guarded<verify_range>},
                                       {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
