// cbk.compute: functions that make variables, functions of neural networks, and the recording of steps.
// scripts/lib/cstorch gives them the names of the training API.
#include <algorithm>

#include "bindings/modules.hpp"
#include "bindings/variable_methods.hpp"
#include "host/base/parallel.hpp"
#include "host/base/sha256.hpp"
#include "host/compute/context.hpp"
#include "host/compute/program.hpp"

namespace cbk::lua {

template <>
struct TypeName<compute::Draws> {
  static constexpr const char* value = "Draws";
};

template <>
struct TypeName<compute::Program> {
  static constexpr const char* value = "Program";
};

namespace {

using compute::context;
using compute::VariablePtr;

DType dtype_option(lua_State* L, int index, DType otherwise) {
  return Options(L, index, {"dtype"}).dtype("dtype", otherwise);
}

// --- making

/// The numbers of nested tables in order; the first table of each level sets the extents.
void read_nested(lua_State* L, int index, size_t level, Shape& shape, std::vector<double>& values) {
  constexpr size_t most_dims = 64;
  if (level > most_dims)
    fail(Errc::value, "tensor: the lists are nested more than {} deep, or one contains itself", most_dims);
  if (!lua_istable(L, index)) {
    if (level != shape.size())
      fail(Errc::value, "tensor: a list is not nested evenly: found a {} at depth {}", type_name(L, index),
           level);
    if (!values.empty() || level > 0) {
      const bool is_number = lua_type(L, index) == LUA_TNUMBER || lua_isboolean(L, index) ||
                             is_int64(L, index) || is_uint64(L, index);
      if (!is_number)
        fail(Errc::usage, "tensor: expected numbers in the list, found a {}", type_name(L, index));
    }
    values.push_back(lua_isboolean(L, index) ? (lua_toboolean(L, index) != 0 ? 1.0 : 0.0)
                                             : check_number(L, index));
    return;
  }
  luaL_checkstack(L, 4, "tensor");
  const auto count = static_cast<int64_t>(lua_objlen(L, index));
  if (level == shape.size() && values.empty()) shape.push_back(count);
  if (level >= shape.size() || shape[level] != count) {
    fail(Errc::value, "tensor: a list is not nested evenly: one of length {} at depth {}", count, level);
  }
  for (int64_t i = 1; i <= count; ++i) {
    lua_rawgeti(L, index, static_cast<int>(i));
    read_nested(L, lua_gettop(L), level + 1, shape, values);
    lua_pop(L, 1);
  }
}

/// `tensor(list, { dtype, shape, requires_grad })`, or `tensor` of a number or a tensor of cbk.
int tensor(lua_State* L) {
  const Options options(L, 2, {"dtype", "shape", "requires_grad"});
  VariablePtr out;
  if (const auto leaf = test<const TensorLeaf>(L, 1)) {
    const DType dtype = options.dtype("dtype", leaf->tensor.dtype());
    out = compute::Variable::from_tensor(dtype == leaf->tensor.dtype() ? leaf->tensor
                                                                       : leaf->tensor.cast(dtype));
  } else if (const auto other = test<compute::Variable>(L, 1)) {
    out = compute::clone(compute::cast(other->detached(), options.dtype("dtype", other->dtype())));
  } else {
    Shape shape;
    std::vector<double> values;
    read_nested(L, 1, 0, shape, values);
    if (options.has("shape")) {
      options.push("shape");
      const Shape wanted = check_integers(L, lua_gettop(L));
      lua_pop(L, 1);
      if (numel_of(wanted) != static_cast<int64_t>(values.size())) {
        fail(Errc::value, "tensor: {} numbers cannot have the shape {}", values.size(), to_string(wanted));
      }
      shape = wanted;
    }
    out = compute::Variable::from_doubles(options.dtype("dtype", DType::float32), shape, values);
  }
  if (options.flag("requires_grad")) out->set_requires_grad(true);
  return push_variable(L, out);
}

int push_full(lua_State* L, double value, int options) {
  const Shape shape = check_integers(L, 1);
  return push_variable(
      L, compute::full(dtype_option(L, options, DType::float32), shape, value, context().device));
}

int push_full_like(lua_State* L, double value, int options) {
  const auto x = check_variable(L, 1);
  return push_variable(L,
                       compute::full(dtype_option(L, options, x->dtype()), x->shape(), value, x->device()));
}

int full(lua_State* L) {
  check_integers(L, 1);
  return push_full(L, check_number(L, 2), 3);
}
int full_like(lua_State* L) {
  check_variable(L, 1);
  return push_full_like(L, check_number(L, 2), 3);
}
template <int value>
int constant(lua_State* L) {
  return push_full(L, value, 2);
}
template <int value>
int constant_like(lua_State* L) {
  return push_full_like(L, value, 2);
}

/// `arange(stop)`, `arange(start, stop, step)`, and options after the last number.
int arange(lua_State* L) {
  const double first = check_number(L, 1);
  const auto is_given = [L](int index) { return !lua_isnoneornil(L, index) && !lua_istable(L, index); };
  const bool has_stop = is_given(2), has_step = is_given(3);
  const double start = has_stop ? first : 0, stop = has_stop ? check_number(L, 2) : first;
  const double step = has_step ? check_number(L, 3) : 1;
  int options = 2;
  while (options < 4 && !lua_istable(L, options)) ++options;
  return push_variable(L, compute::arange(dtype_option(L, options, DType::float32), start, stop, step));
}

int rand(lua_State* L) {
  return push_variable(L, compute::random_uniform(dtype_option(L, 2, DType::float32), check_integers(L, 1)));
}
int randn(lua_State* L) {
  return push_variable(L, compute::random_normal(dtype_option(L, 2, DType::float32), check_integers(L, 1)));
}

int randint(lua_State* L) {
  const double low = check_number(L, 1), high = check_number(L, 2);
  return push_variable(
      L, compute::random_integers(dtype_option(L, 4, DType::int64), check_integers(L, 3), low, high));
}

int manual_seed(lua_State* L) {
  context().seed = static_cast<uint64_t>(check_integer(L, 1));
  context().drawn = 0;
  return 0;
}

int dropout_mask(lua_State* L) {
  return push_variable(L, compute::dropout_mask(check_integers(L, 1), check_number(L, 2)));
}

int where(lua_State* L) {
  return push_variable(L, compute::where(check_variable(L, 1), check_input(L, 2), check_input(L, 3)));
}

std::vector<VariablePtr> check_list(lua_State* L, int index) {
  if (!lua_istable(L, index)) fail_type(L, index, "list of tensors");
  std::vector<VariablePtr> out;
  for (size_t i = 1; i <= lua_objlen(L, index); ++i) {
    lua_rawgeti(L, index, static_cast<int>(i));
    const int top = lua_gettop(L);
    if (!is<compute::Variable>(L, top))
      fail_argument(L, index, fmt::format("item {} of the list of tensors is a {}", i, type_name(L, top)));
    out.push_back(check_variable(L, top));
    lua_pop(L, 1);
  }
  return out;
}

/// cbk.compute.set_team_shares(list): the share of each rank in the global batch; an empty list: no
/// reduction.
int set_team_shares(lua_State* L) {
  std::vector<double> shares;
  for (size_t i = 1; i <= lua_objlen(L, 1); ++i) {
    lua_rawgeti(L, 1, static_cast<int>(i));
    shares.push_back(check_number(L, -1));
    lua_pop(L, 1);
  }
  context().team_shares = std::move(shares);
  return 0;
}

/// cbk.compute.team_sum(list, is_mean): the sum of each tensor over all ranks, or its mean, weighted by their
/// shares. All have to call it.
int team_sum(lua_State* L) {
  const auto sums = compute::team_sum(check_list(L, 1), lua_toboolean(L, 2) != 0);
  lua_createtable(L, static_cast<int>(sums.size()), 0);
  for (size_t i = 0; i < sums.size(); ++i) {
    push_variable(L, sums[i]);
    lua_rawseti(L, -2, static_cast<int>(i + 1));
  }
  return 1;
}

/// cbk.compute.digest(list): of the bytes of tensors, as a text.
int digest(lua_State* L) {
  Sha256 out;
  for (const VariablePtr& one : check_list(L, 1)) {
    const auto dense = compute::contiguous(one);
    out.add({dense->operand().bytes(), static_cast<size_t>(dense->numel()) * size_of(dense->dtype())});
  }
  push(L, std::string_view(to_hex(out.digest())));
  return 1;
}

int cat_variables(lua_State* L) {
  return push_variable(L, compute::concat(check_list(L, 1), opt_integer(L, 2, 0)));
}
int stack_variables(lua_State* L) {
  return push_variable(L, compute::stack(check_list(L, 1), opt_integer(L, 2, 0)));
}

int is_tensor(lua_State* L) {
  lua_pushboolean(L, is<compute::Variable>(L, 1));
  return 1;
}

/// The values as a tensor of cbk, over the same memory.
int to_lazy(lua_State* L) {
  push(L, check_variable(L, 1)->to_tensor());
  return 1;
}

/// `feed(input, given, place)`: the values of `given` for the input of a recorded step.
int feed(lua_State* L) {
  const auto input = check_variable(L, 1), given = check_variable(L, 2);
  if (input->shape() != given->shape() || input->dtype() != given->dtype()) {
    fail(Errc::shape,
         "compile_step: {} was {} {} in the first step and is {} {} now; with drop_last, a loader leaves out "
         "the last, smaller batch",
         check_string(L, 3), name_of(input->dtype()), to_string(input->shape()), name_of(given->dtype()),
         to_string(given->shape()));
  }
  compute::feed(input, given);
  return 0;
}

// --- neural networks

VariablePtr opt_variable(lua_State* L, int index) {
  return lua_isnoneornil(L, index) ? nullptr : check_variable(L, index);
}

VariablePtr variable_option(lua_State* L, const Options& options, const char* name) {
  if (!options.has(name)) return nullptr;
  options.push(name);
  VariablePtr out = check_variable(L, lua_gettop(L));
  lua_pop(L, 1);
  return out;
}

int linear(lua_State* L) {
  return push_variable(L, compute::linear(check_variable(L, 1), check_variable(L, 2), opt_variable(L, 3)));
}
int embedding(lua_State* L) {
  return push_variable(L, compute::embedding(check_variable(L, 1), check_variable(L, 2)));
}

int layer_norm(lua_State* L) {
  const double eps = Options(L, 4, {"eps"}).number("eps", 1e-5);
  return push_variable(
      L, compute::layer_norm(check_variable(L, 1), check_variable(L, 2), opt_variable(L, 3), eps));
}

int rms_norm(lua_State* L) {
  const double eps = Options(L, 3, {"eps"}).number("eps", 1e-6);
  return push_variable(L, compute::rms_norm(check_variable(L, 1), check_variable(L, 2), eps));
}

int gelu(lua_State* L) {
  const std::string form = Options(L, 2, {"approximate"}).text("approximate", "none");
  if (form != "none" && form != "tanh")
    fail(Errc::value, R"(gelu: approximate must be "none" or "tanh", not {})", quote(form));
  return push_variable(
      L, compute::unary(form == "tanh" ? compute::ElementOp::gelu_tanh : compute::ElementOp::gelu,
                        check_variable(L, 1)));
}

int silu(lua_State* L) {
  return push_variable(L, compute::unary(compute::ElementOp::silu, check_variable(L, 1)));
}

int cross_entropy(lua_State* L) {
  const Options options(L, 3, {"reduction", "ignore_index"});
  const std::string name = options.text("reduction", "mean");
  const bool is_known = name == "mean" || name == "sum" || name == "none";
  if (!is_known)
    fail(Errc::value, R"(cross_entropy: reduction must be "mean", "sum" or "none", not {})", quote(name));
  using compute::Reduction;
  const auto reduction = name == "mean" ? Reduction::mean : name == "sum" ? Reduction::sum : Reduction::none;
  const int64_t ignored = options.integer("ignore_index", INT64_MIN, INT64_MAX).value_or(-100);
  return push_variable(
      L, compute::cross_entropy(check_variable(L, 1), check_variable(L, 2), reduction, ignored));
}

int attention(lua_State* L) {
  const Options options(L, 4, {"causal", "scale", "cap", "dropout_p", "mask", "window", "slopes"});
  compute::AttentionOptions how;
  how.causal = options.flag("causal");
  if (options.has("scale")) how.scale = options.number("scale", 1);
  if (options.has("cap")) how.cap = options.number("cap", 1);
  how.dropout = options.number("dropout_p", 0);
  how.window = options.integer("window", INT64_MIN, INT64_MAX);
  how.mask = variable_option(L, options, "mask");
  how.slopes = variable_option(L, options, "slopes");
  return push_variable(
      L, compute::attention(check_variable(L, 1), check_variable(L, 2), check_variable(L, 3), how));
}

// --- modes. Each returns the previous mode, so that a scope in Lua can restore it.

int records_gradients(lua_State* L) {
  lua_pushboolean(L, context().records_gradients);
  if (!lua_isnoneornil(L, 1)) context().records_gradients = lua_toboolean(L, 1) != 0;
  return 1;
}

int may_read_device(lua_State* L) {
  lua_pushboolean(L, context().may_read_device);
  if (!lua_isnoneornil(L, 1)) context().may_read_device = lua_toboolean(L, 1) != 0;
  return 1;
}

compute::Device check_device(lua_State* L, int index) {
  const std::string_view name = check_string(L, index);
  for (const auto device : {compute::Device::cpu, compute::Device::csx}) {
    if (compute::name_of(device) == name) return device;
  }
  fail(Errc::value, R"(unknown device {}: expected "cpu" or "csx")", quote(name));
}

/// The device of new tensors.
int device(lua_State* L) {
  push(L, compute::name_of(context().device));
  if (!lua_isnoneornil(L, 1)) context().device = check_device(L, 1);
  return 1;
}

/// `place(t, device)`: moves t to that device and returns it.
int place(lua_State* L) {
  check_variable(L, 1)->set_device(check_device(L, 2));
  lua_settop(L, 1);
  return 1;
}

/// The values on the host, without history.
int host_copy(lua_State* L) {
  return push_variable(L, compute::host_copy(check_variable(L, 1)));
}

int mark_weight(lua_State* L) {
  check_variable(L, 1)->buffer()->mark_weight();
  return 0;
}

/// Whether a tensor is a weight or optimizer state, or a view of one.
int is_weight(lua_State* L) {
  lua_pushboolean(L, check_variable(L, 1)->buffer()->is_weight());
  return 1;
}

/// How often the tensor was written in place; a recorded write counts once.
int write_count(lua_State* L) {
  push_integer(L, static_cast<int64_t>(check_variable(L, 1)->buffer()->version()));
  return 1;
}

/// How many gradients `backward` gave to a leaf.
int gradient_count(lua_State* L) {
  push_integer(L, static_cast<int64_t>(check_variable(L, 1)->gradients_received()));
  return 1;
}

/// Whether a leaf was written in place after its first gradient.
int is_written_since_gradient(lua_State* L) {
  lua_pushboolean(L, check_variable(L, 1)->is_written_since_gradient());
  return 1;
}

/// How often a leaf with a gradient was an operand of p - x or p + x.
int rebound_count(lua_State* L) {
  push_integer(L, static_cast<int64_t>(check_variable(L, 1)->rebound_count()));
  return 1;
}

/// `set_gradient_mask(p, mask)`: gradients of `backward` are 0 where the mask is.
int set_gradient_mask(lua_State* L) {
  const auto& leaf = check_variable(L, 1);
  const auto& mask = check_variable(L, 2);
  if (leaf->shape() != mask->shape())
    fail(Errc::shape, "a mask {} for gradients {}", to_string(mask->shape()), to_string(leaf->shape()));
  leaf->set_grad_mask(mask);
  return 0;
}

/// `set_own(leaf)`: the ranks of a team do not add up its gradient.
int set_own(lua_State* L) {
  check_variable(L, 1)->set_own();
  return 0;
}

int threads(lua_State* L) {
  push_integer(L, thread_count());
  if (!lua_isnoneornil(L, 1)) set_thread_count(static_cast<int>(check_integer(L, 1, 1, 256)));
  return 1;
}

/// The memory of tensors now, and the number of allocations since the start.
int memory(lua_State* L) {
  const auto count = compute::Buffer::count();
  push_unsigned(L, count.live_bytes);
  push_unsigned(L, count.allocations);
  return 2;
}

// --- programs

/// `program(reading)`: "refused", "runs early" or "in place".
int program(lua_State* L) {
  using Reading = compute::Program::Reading;
  const std::string_view name = lua_isnoneornil(L, 1) ? "refused" : check_string(L, 1);
  const Reading reading = name == "in place"     ? Reading::in_place
                          : name == "runs early" ? Reading::runs_early
                                                 : Reading::refused;
  push(L, std::make_shared<compute::Program>(reading));
  return 1;
}

int program_finish_lazily(lua_State* L) {
  check<compute::Program>(L, 1)->finish_lazily();
  return 0;
}

/// `program:lazy_value(t)`: the tensor of cbk for t.
int program_lazy_value(lua_State* L) {
  const auto variable = check_variable(L, 2);
  const auto value = check<compute::Program>(L, 1)->value_of(variable->buffer().get());
  if (!value) {
    push(L, variable->to_tensor());
  } else if (variable->operand().is_contiguous() && variable->numel() == value->numel()) {
    push(L, value->reshape(variable->shape()));
  } else {
    fail(Errc::refused, "a formula over tensors of a checkpoint gives whole tensors, not views of a part: {}",
         to_string(variable->shape()));
  }
  return 1;
}

/// `recording(program or nil)`: sets the program that records from now on; returns the previous one.
int recording(lua_State* L) {
  compute::Program* before = context().program;
  context().program = lua_isnoneornil(L, 1) ? nullptr : check<compute::Program>(L, 1).get();
  lua_pushboolean(L, before != nullptr);
  return 1;
}

int draws(lua_State* L) {
  push(L, std::make_shared<compute::Draws>());
  return 1;
}

/// `drawing(draws or nil)`: random tensors are noted there from now on, or are those that were noted if there
/// are any. Returns the one before.
int drawing(lua_State* L) {
  std::shared_ptr<compute::Draws> before = context().draws;
  context().draws = lua_isnoneornil(L, 1) ? nullptr : check<compute::Draws>(L, 1);
  if (!before) return 0;
  push(L, std::move(before));
  return 1;
}

int draws_repeat(lua_State* L) {
  check<compute::Draws>(L, 1)->repeat();
  return 0;
}

int program_keep(lua_State* L) {
  check<compute::Program>(L, 1)->keep(check_variable(L, 2)->buffer());
  return 0;
}

int program_when(lua_State* L) {
  const auto flag = check_variable(L, 2);
  if (flag->numel() != 1)
    fail(Errc::shape, "a condition needs a tensor of one element, not of shape {}", to_string(flag->shape()));
  check<compute::Program>(L, 1)->begin_condition(flag->operand());
  return 0;
}

int program_end_when(lua_State* L) {
  check<compute::Program>(L, 1)->end_condition();
  return 0;
}

int program_finish(lua_State* L) {
  check<compute::Program>(L, 1)->finish();
  return 0;
}

int program_run(lua_State* L) {
  check<compute::Program>(L, 1)->run();
  return 0;
}

int program_size(lua_State* L) {
  const auto size = check<compute::Program>(L, 1)->size();
  lua_newtable(L);
  set_integer(L, "recorded", size.recorded);
  set_integer(L, "kernels", size.kernels);
  set_integer(L, "arena_bytes", size.arena_bytes);
  return 1;
}

}  // namespace

void bind_compute(lua_State* L) {
  static const luaL_Reg functions[] = {{"tensor", computed<tensor>},
                                       {"full", computed<full>},
                                       {"full_like", computed<full_like>},
                                       {"zeros", computed<constant<0>>},
                                       {"ones", computed<constant<1>>},
                                       {"zeros_like", computed<constant_like<0>>},
                                       {"ones_like", computed<constant_like<1>>},
                                       {"arange", computed<arange>},
                                       {"rand", computed<rand>},
                                       {"randn", computed<randn>},
                                       {"randint", computed<randint>},
                                       {"manual_seed", computed<manual_seed>},
                                       {"dropout_mask", computed<dropout_mask>},
                                       {"where", computed<where, 3>},
                                       {"cat", computed<cat_variables, 2>},
                                       {"stack", computed<stack_variables, 2>},
                                       {"set_team_shares", computed<set_team_shares>},
                                       {"set_own", set_own},
                                       {"team_sum", computed<team_sum>},
                                       {"digest", computed<digest>},
                                       {"is_tensor", computed<is_tensor>},
                                       {"to_lazy", computed<to_lazy>},
                                       {"feed", computed<feed>},
                                       {"linear", computed<linear>},
                                       {"embedding", computed<embedding>},
                                       {"layer_norm", computed<layer_norm>},
                                       {"rms_norm", computed<rms_norm>},
                                       {"gelu", computed<gelu>},
                                       {"silu", computed<silu>},
                                       {"cross_entropy", computed<cross_entropy>},
                                       {"scaled_dot_product_attention", computed<attention>},
                                       {"records_gradients", computed<records_gradients>},
                                       {"may_read_device", computed<may_read_device>},
                                       {"device", computed<device>},
                                       {"place", computed<place>},
                                       {"host_copy", computed<host_copy>},
                                       {"mark_weight", computed<mark_weight>},
                                       {"is_weight", computed<is_weight>},
                                       {"write_count", computed<write_count>},
                                       {"gradient_count", computed<gradient_count>},
                                       {"rebound_count", computed<rebound_count>},
                                       {"is_written_since_gradient", computed<is_written_since_gradient>},
                                       {"set_gradient_mask", computed<set_gradient_mask>},
                                       {"threads", computed<threads>},
                                       {"memory", computed<memory>},
                                       {"program", computed<program>},
                                       {"recording", computed<recording>},
                                       {"draws", computed<draws>},
                                       {"drawing", computed<drawing>},
                                       {nullptr, nullptr}};
  static const luaL_Reg methods[] = {{"close", computed<close_box<compute::Program>>},
                                     {"keep", computed<program_keep>},
                                     {"when", computed<program_when>},
                                     {"end_when", computed<program_end_when>},
                                     {"finish", computed<program_finish>},
                                     {"run", computed<program_run>},
                                     {"finish_lazily", computed<program_finish_lazily>},
                                     {"lazy_value", computed<program_lazy_value>},
                                     {"size", computed<program_size>},
                                     {nullptr, nullptr}};
  register_type<compute::Program>(L, {methods, nullptr, nullptr});
  static const luaL_Reg draws_methods[] = {{"close", computed<close_box<compute::Draws>>},
                                           {"repeat_all", computed<draws_repeat>},
                                           {nullptr, nullptr}};
  register_type<compute::Draws>(L, {draws_methods, nullptr, nullptr});
  set_group(L, "compute", functions);
}

}  // namespace cbk::lua
