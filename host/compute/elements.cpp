// Element-wise operators and their gradients.
#include <algorithm>
#include <array>
#include <cmath>

#include "host/base/error.hpp"
#include "host/compute/context.hpp"
#include "host/compute/elementwise.hpp"
#include "host/compute/operators.hpp"
#include "host/compute/promote.hpp"
#include "host/compute/strided.hpp"
#include "host/compute/tape.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk::compute {
namespace {

/// Builds a chain step by step.
class Builder {
 public:
  Builder(DType type, Shape domain) {
    chain_.type = type;
    chain_.domain = std::move(domain);
  }

  ChainValue input(const Input& operand) {
    if (const auto* number = std::get_if<double>(&operand)) {
      chain_.constants.push_back(*number);
      return {ChainValue::Kind::constant, static_cast<int>(chain_.constants.size()) - 1};
    }
    chain_.inputs.push_back(expanded(std::get<VariablePtr>(operand)->operand(), chain_.domain));
    return {ChainValue::Kind::input, static_cast<int>(chain_.inputs.size()) - 1};
  }

  ChainValue step(ElementOp op, ChainValue a, ChainValue b = {}, ChainValue c = {}) {
    chain_.steps.push_back({op, {a, b, c}});
    return {ChainValue::Kind::step, static_cast<int>(chain_.steps.size()) - 1};
  }

  void finish(const Operand& to, ChainValue value) {
    chain_.outputs.push_back({to, value});
    execute(std::make_unique<Elementwise>(std::move(chain_)));
  }

 private:
  ElementChain chain_;
};

Shape shape_of(const Input& operand) {
  const auto* variable = std::get_if<VariablePtr>(&operand);
  return variable == nullptr ? Shape{} : (*variable)->shape();
}

VariablePtr variable_of(const Input& operand) {
  const auto* variable = std::get_if<VariablePtr>(&operand);
  return variable == nullptr ? nullptr : *variable;
}

[[noreturn]] void fail_two_devices() {
  fail(Errc::refused,
       "a tensor on the CSX and one on the CPU cannot be used together: make it inside of the step, or put "
       "it into the model "
       "with register_buffer");
}

Device device_of(std::initializer_list<const Input*> operands) {
  std::optional<Device> device;
  for (const Input* operand : operands) {
    const VariablePtr variable = variable_of(*operand);
    if (!variable) continue;
    if (device && *device != variable->device()) fail_two_devices();
    device = variable->device();
  }
  return device.value_or(context().device);
}

bool makes_floats(ElementOp op) {
  switch (op) {
    case ElementOp::exp:
    case ElementOp::log:
    case ElementOp::sqrt:
    case ElementOp::rsqrt:
    case ElementOp::cos:
    case ElementOp::sin:
    case ElementOp::tanh:
    case ElementOp::sigmoid:
    case ElementOp::erf:
    case ElementOp::gelu:
    case ElementOp::gelu_tanh:
    case ElementOp::silu:
    case ElementOp::reciprocal:
    case ElementOp::divide:
      return true;
    default:
      return false;
  }
}

DType dtype_for(ElementOp op, DType operands) {
  if (is_predicate(op)) return DType::boolean;
  return makes_floats(op) && !is_floating(operands) ? DType::float32 : operands;
}

/// The type of the arithmetic: the result's, or for predicates the operands'.
DType type_for(ElementOp op, DType operands, DType result) {
  return compute_type(is_predicate(op) ? operands : result);
}

VariablePtr product(const VariablePtr& a, const Input& b) {
  return binary(ElementOp::multiply, a, b);
}

Input cast(const Input& operand, DType dtype) {
  const VariablePtr variable = variable_of(operand);
  return variable ? Input(compute::cast(variable, dtype)) : operand;
}

/// A number compared with float16 or bfloat16 is rounded to it, as in PyTorch: an element made from 0.1
/// equals 0.1.
Input compared(const Input& operand, DType dtype) {
  if (dtype != DType::float16 && dtype != DType::bfloat16) return operand;
  if (const VariablePtr variable = variable_of(operand)) return compute::cast(variable->detached(), dtype);
  double number = std::get<double>(operand);
  uint16_t bits = 0;
  cast_elements(DType::float64, reinterpret_cast<const std::byte*>(&number), dtype,
                reinterpret_cast<std::byte*>(&bits), 1);
  cast_elements(dtype, reinterpret_cast<const std::byte*>(&bits), DType::float64,
                reinterpret_cast<std::byte*>(&number), 1);
  return number;
}

/// The gradient of one operand: upstream times the slope.
VariablePtr unary_gradient(ElementOp op, const VariablePtr& g, const VariablePtr& x, const VariablePtr& y) {
  switch (op) {
    case ElementOp::negate:
      return unary(ElementOp::negate, g);
    case ElementOp::absolute:
      return product(g, unary(ElementOp::sign, x));
    case ElementOp::exp:
      return product(g, y);
    case ElementOp::log:
      return binary(ElementOp::divide, g, x);
    case ElementOp::sqrt:
      return binary(ElementOp::divide, g, product(y, 2.0));
    case ElementOp::rsqrt:
      return product(g, product(product(unary(ElementOp::square, y), y), -0.5));
    case ElementOp::square:
      return product(g, product(x, 2.0));
    case ElementOp::cos:
      return product(g, unary(ElementOp::negate, unary(ElementOp::sin, x)));
    case ElementOp::sin:
      return product(g, unary(ElementOp::cos, x));
    case ElementOp::tanh:
      return product(g, binary(ElementOp::subtract, 1.0, unary(ElementOp::square, y)));
    case ElementOp::sigmoid:
      return product(g, product(y, binary(ElementOp::subtract, 1.0, y)));
    case ElementOp::relu:
      return where(binary(ElementOp::less_equal, y, 0.0), 0.0, g);
    case ElementOp::erf:  // 2/√π·exp(-x²)
      return product(g, product(unary(ElementOp::exp, unary(ElementOp::negate, unary(ElementOp::square, x))),
                                1.1283791670955126));
    case ElementOp::gelu:
      return product(g, unary(ElementOp::gelu_slope, x));
    case ElementOp::gelu_tanh:
      return product(g, unary(ElementOp::gelu_tanh_slope, x));
    case ElementOp::silu:
      return product(g, unary(ElementOp::silu_slope, x));
    case ElementOp::reciprocal:
      return product(g, unary(ElementOp::negate, unary(ElementOp::square, y)));
    case ElementOp::sign:
    case ElementOp::floor:
    case ElementOp::ceil:
      return full(g->dtype(), g->shape(), 0, g->device());
    default:
      return g;  // copy
  }
}

/// Whether a gradient takes several steps. In half precision only the end result is rounded.
bool has_steps(ElementOp op) {
  switch (op) {
    case ElementOp::copy:
    case ElementOp::negate:
    case ElementOp::absolute:
    case ElementOp::exp:
    case ElementOp::log:
    case ElementOp::square:
    case ElementOp::sign:
    case ElementOp::floor:
    case ElementOp::ceil:
    case ElementOp::relu:
    case ElementOp::add:
    case ElementOp::subtract:
    case ElementOp::multiply:
    case ElementOp::maximum:
    case ElementOp::minimum:
      return false;
    default:
      return true;
  }
}

bool uses_result(ElementOp op) {
  switch (op) {
    case ElementOp::exp:
    case ElementOp::sqrt:
    case ElementOp::rsqrt:
    case ElementOp::tanh:
    case ElementOp::sigmoid:
    case ElementOp::relu:
    case ElementOp::reciprocal:
      return true;
    default:
      return false;
  }
}

/// 0 if an operand is the smaller (or larger) one, one half if both are equal, else 1, also beside a NaN.
VariablePtr share_of(ElementOp op, const VariablePtr& g, const Input& mine, const Input& other) {
  const ElementOp loses = op == ElementOp::maximum ? ElementOp::less : ElementOp::greater;
  const VariablePtr equal = binary(ElementOp::equal, mine, other);
  return where(binary(loses, mine, other), 0.0, where(equal, product(g, 0.5), g));
}

/// b·a^(b-1), and 0 for b = 0 if a is also 0.
VariablePtr power_slope(const VariablePtr& a, const Input& b) {
  const VariablePtr exponent = variable_of(b);
  if (!exponent && std::get<double>(b) == 0) return full(a->dtype(), a->shape(), 0, a->device());
  const Input less =
      exponent ? Input(binary(ElementOp::subtract, exponent, 1.0)) : Input(std::get<double>(b) - 1);
  const VariablePtr slope = binary(ElementOp::multiply, b, binary(ElementOp::power, a, less));
  return exponent ? where(binary(ElementOp::equal, exponent, 0.0), 0.0, slope) : slope;
}

/// a^b·log(a), and 0 for a = 0 if b is not negative.
VariablePtr exponent_slope(const Input& a, const VariablePtr& b) {
  const VariablePtr base =
      variable_of(a) ? variable_of(a) : full(b->dtype(), {}, std::get<double>(a), b->device());
  const VariablePtr is_zero = binary(ElementOp::logical_and, binary(ElementOp::equal, base, 0.0),
                                     binary(ElementOp::greater_equal, b, 0.0));
  return where(is_zero, 0.0, product(binary(ElementOp::power, a, b), unary(ElementOp::log, base)));
}

std::vector<VariablePtr> binary_gradients(ElementOp op, const VariablePtr& g, const Input& a, const Input& b,
                                          bool needs_a, bool needs_b) {
  VariablePtr ga, gb;
  switch (op) {
    case ElementOp::add:
      ga = g;
      gb = g;
      break;
    case ElementOp::subtract:
      ga = g;
      if (needs_b) gb = unary(ElementOp::negate, g);
      break;
    case ElementOp::multiply:
      if (needs_a) ga = product(g, b);
      if (needs_b) gb = product(g, a);
      break;
    case ElementOp::divide:
      if (needs_a) ga = binary(ElementOp::divide, g, b);
      if (needs_b) {  // not b², which leaves the range of floats long before a/b does
        const VariablePtr slope = binary(ElementOp::divide, binary(ElementOp::divide, a, b), b);
        gb = unary(ElementOp::negate, product(g, slope));
      }
      break;
    case ElementOp::power:
      if (needs_a) ga = product(g, power_slope(variable_of(a), b));
      if (needs_b) gb = product(g, exponent_slope(a, variable_of(b)));
      break;
    case ElementOp::maximum:
    case ElementOp::minimum:
      if (needs_a) ga = share_of(op, g, a, b);
      if (needs_b) gb = share_of(op, g, b, a);
      break;
    default:
      return {nullptr, nullptr};
  }
  if (needs_a) ga = sum_to(ga, shape_of(a));
  if (needs_b) gb = sum_to(gb, shape_of(b));
  return {needs_a ? ga : nullptr, needs_b ? gb : nullptr};
}

/// A saved operand: a variable's earlier value, or a number.
class SavedInput {
 public:
  SavedInput(const Input& input, bool is_needed) {
    if (const auto* variable = std::get_if<VariablePtr>(&input)) {
      if (is_needed) {
        saved_.emplace(*variable);
      } else {
        shape_only_ = (*variable)->detached();
      }
    } else {
      number_ = std::get<double>(input);
    }
  }
  [[nodiscard]] Input get() const {
    if (saved_) return saved_->get();
    if (shape_only_) return shape_only_;
    return number_;
  }

 private:
  std::optional<Saved> saved_;
  VariablePtr shape_only_;  // whose values the gradient does not use
  double number_ = 0;
};

bool requires_grad(const Input& input) {
  const VariablePtr variable = variable_of(input);
  return variable && variable->requires_grad();
}

VariablePtr record_unary(ElementOp op, const VariablePtr& x, const VariablePtr& y) {
  if (is_predicate(op)) return y;
  return recorded(std::string(name_of(op)), y, {x}, [&]() -> Node::Backward {
    const Saved saved(uses_result(op) ? y : x);
    return [op, saved](const VariablePtr& g) -> std::vector<VariablePtr> {
      const DType type = has_steps(op) ? compute_type(g->dtype()) : g->dtype();
      const VariablePtr value = cast(saved.get(), type);
      return {cast(unary_gradient(op, cast(g, type), value, value), g->dtype())};
    };
  });
}

VariablePtr record_binary(ElementOp op, const Input& a, const Input& b, const VariablePtr& y) {
  if (is_predicate(op)) return y;
  return recorded(std::string(name_of(op)), y, {variable_of(a), variable_of(b)}, [&]() -> Node::Backward {
    const bool needs_a = requires_grad(a), needs_b = requires_grad(b);
    const bool is_sum = op == ElementOp::add || op == ElementOp::subtract;
    const bool is_product = op == ElementOp::multiply;
    const SavedInput saved_a(a, !is_sum && (!is_product || needs_b));
    const SavedInput saved_b(b, !is_sum && (!is_product || needs_a));
    return [=](const VariablePtr& g) {
      const DType type = has_steps(op) ? compute_type(g->dtype()) : g->dtype();
      const auto operand = [&](const SavedInput& saved) {
        return has_steps(op) ? cast(saved.get(), type) : saved.get();
      };
      auto gradients =
          binary_gradients(op, cast(g, type), operand(saved_a), operand(saved_b), needs_a, needs_b);
      for (VariablePtr& gradient : gradients) {
        if (gradient) gradient = cast(gradient, g->dtype());
      }
      return gradients;
    };
  });
}

/// x^2, x^0.5 and the like have operations of their own, which are exact and fast.
std::optional<ElementOp> simple_power(double exponent) {
  if (exponent == 2) return ElementOp::square;
  if (exponent == 0.5) return ElementOp::sqrt;
  if (exponent == -0.5) return ElementOp::rsqrt;
  if (exponent == 1) return ElementOp::copy;
  if (exponent == -1) return ElementOp::reciprocal;
  return std::nullopt;
}

/// Copies an operand that is another view of the memory that is written in place.
Input without_overlap(const VariablePtr& x, const Input& operand) {
  const VariablePtr variable = variable_of(operand);
  if (!variable || variable->buffer() != x->buffer() || variable->operand().is_same_view(x->operand()))
    return operand;
  return clone(variable);
}

/// Whether a write of `inputs` into x is recorded.
bool check_writable(const VariablePtr& x, std::initializer_list<const Input*> inputs) {
  for (size_t dim = 0; dim < x->shape().size(); ++dim) {
    if (x->operand().strides[dim] == 0 && x->shape()[dim] > 1)
      fail(Errc::refused,
           "an expanded tensor repeats its elements and cannot be written in place: clone() it before");
  }
  if (!context().records_gradients) return false;
  if (x->is_leaf() && x->requires_grad()) {
    fail(Errc::refused,
         "a leaf that requires a gradient is written in place: do it in cstorch.no_grad(function() ... end)");
  }
  std::vector<VariablePtr> variables = {x};
  for (const Input* input : inputs) variables.push_back(variable_of(*input));
  const bool is_recorded = needs_gradient(variables);
  if (is_recorded && x->is_view()) {
    fail(
        Errc::refused,
        "writing in place into a view (of slice, select, reshape, …) has no gradient: make a new tensor with "
        "cat or where, or clone() the view before");
  }
  return is_recorded;
}

/// Integers can be changed in place only by integers.
void check_holds(const VariablePtr& x, const Input& operand, bool makes_fractions = false) {
  const Input own = x;
  if (is_floating(x->dtype()) || !(makes_fractions || is_floating(result_dtype({&own, &operand})))) return;
  fail(Errc::dtype, "written in place: the result has fractions, and a tensor of {} cannot hold them",
       name_of(x->dtype()));
}

void check_fits(const VariablePtr& x, const Shape& other) {
  if (broadcast(x->shape(), other) != x->shape()) {
    fail(Errc::shape, "cannot write shape {} into a tensor of shape {}", to_string(other),
         to_string(x->shape()));
  }
}

/// Operations of several operands, written into x without a gradient (optimizers).
template <typename Body>
void write_chain(const VariablePtr& x, std::initializer_list<const Input*> operands, Body body) {
  if (check_writable(x, operands)) {
    fail(Errc::refused,
         "this in-place operator has no gradient: use it in cstorch.no_grad(function() ... end)");
  }
  std::vector<Input> inputs;
  for (const Input* operand : operands) {
    const Input own = x;
    device_of({&own, operand});
    check_holds(x, *operand);
    check_fits(x, shape_of(*operand));
    inputs.push_back(without_overlap(x, *operand));
  }
  Builder builder(compute_type(x->dtype()), x->shape());
  const ChainValue self = builder.input(x);
  std::vector<ChainValue> values;
  for (const Input& input : inputs) values.push_back(builder.input(input));
  const ChainValue result = body(builder, self, values);
  builder.finish(x->operand(), result);
}

}  // namespace

VariablePtr unary(ElementOp op, const VariablePtr& x) {
  const DType dtype = dtype_for(op, x->dtype());
  VariablePtr y = Variable::empty(dtype, x->shape(), x->device());
  Builder builder(type_for(op, x->dtype(), dtype), x->shape());
  builder.finish(y->operand(), builder.step(op, builder.input(x)));
  return record_unary(op, x, y);
}

VariablePtr binary(ElementOp op, const Input& a, const Input& b) {
  if (op == ElementOp::power && std::holds_alternative<double>(b)) {
    const double exponent = std::get<double>(b);
    if (exponent < 0 && exponent == std::floor(exponent) && !is_floating(variable_of(a)->dtype())) {
      fail(Errc::value, "pow: a negative power of {} numbers is no such number: cast them to float32 first",
           name_of(variable_of(a)->dtype()));
    }
    if (const auto simple = simple_power(std::get<double>(b))) return unary(*simple, variable_of(a));
  }
  const DType operands = result_dtype({&a, &b});
  const DType dtype = dtype_for(op, operands);
  const Device device = device_of({&a, &b});
  Shape shape = broadcast(shape_of(a), shape_of(b));
  const DType type = type_for(op, operands, dtype);
  VariablePtr y = Variable::empty(dtype, shape, device);
  Builder builder(type, std::move(shape));
  const bool is_test = is_predicate(op);
  const ChainValue left = builder.input(is_test ? compared(a, operands) : a);
  const ChainValue right = builder.input(is_test ? compared(b, operands) : b);
  builder.finish(y->operand(), builder.step(op, left, right));
  return record_binary(op, a, b, y);
}

VariablePtr where(const VariablePtr& condition, const Input& a, const Input& b) {
  const Input test = condition;
  const DType dtype = result_dtype({&a, &b});
  const Device device = device_of({&test, &a, &b});
  Shape shape = broadcast(condition->shape(), broadcast(shape_of(a), shape_of(b)));
  VariablePtr y = Variable::empty(dtype, shape, device);
  Builder builder(compute_type(dtype), shape);
  const ChainValue c = builder.input(condition);
  const ChainValue left = builder.input(a);
  const ChainValue right = builder.input(b);
  builder.finish(y->operand(), builder.step(ElementOp::where, c, left, right));
  return recorded("where", y, {variable_of(a), variable_of(b)}, [&]() -> Node::Backward {
    const Saved saved(condition);
    const bool needs_a = requires_grad(a), needs_b = requires_grad(b);
    return
        [=, a_shape = shape_of(a), b_shape = shape_of(b)](const VariablePtr& g) -> std::vector<VariablePtr> {
          return {needs_a ? sum_to(where(saved.get(), g, 0.0), a_shape) : nullptr,
                  needs_b ? sum_to(where(saved.get(), 0.0, g), b_shape) : nullptr};
        };
  });
}

VariablePtr cast(const VariablePtr& x, DType dtype) {
  if (dtype == x->dtype()) return x;
  VariablePtr y = Variable::empty(dtype, x->shape(), x->device());
  // Conversions between integers and floats go through the wider type.
  const bool is_whole = !is_floating(x->dtype()) && !is_floating(dtype);
  const DType type = is_whole ? DType::int64
                     : x->dtype() == DType::float64 || dtype == DType::float64 || !is_floating(dtype) ||
                             !is_floating(x->dtype())
                         ? DType::float64
                         : DType::float32;
  Builder builder(type, x->shape());
  const ChainValue value = builder.input(x);
  builder.finish(y->operand(), dtype == DType::boolean
                                   ? builder.step(ElementOp::not_equal, value, builder.input(0.0))
                                   : builder.step(ElementOp::copy, value));
  if (!is_floating(dtype)) return y;
  return recorded("to", y, {x}, [&]() -> Node::Backward {
    return [from = x->dtype()](const VariablePtr& g) -> std::vector<VariablePtr> { return {cast(g, from)}; };
  });
}

VariablePtr clone(const VariablePtr& x) {
  VariablePtr y = Variable::empty(x->dtype(), x->shape(), x->device());
  Builder builder(compute_type(x->dtype()), x->shape());
  builder.finish(y->operand(), builder.step(ElementOp::copy, builder.input(x)));
  return recorded("clone", y, {x}, []() -> Node::Backward {
    return [](const VariablePtr& g) -> std::vector<VariablePtr> { return {g}; };
  });
}

VariablePtr host_copy(const VariablePtr& x) {
  if (context().program != nullptr) {
    VariablePtr y = clone(x->detached());
    y->set_device(Device::cpu);
    return y;
  }
  if (!x->buffer()->has_values()) fail_without_values();
  VariablePtr y = Variable::empty(x->dtype(), x->shape(), Device::cpu);
  gather(x->operand(), 0, x->numel(), y->operand().bytes());
  return y;
}

VariablePtr contiguous(const VariablePtr& x) {
  return x->operand().is_contiguous() ? x : clone(x);
}

VariablePtr clamp(const VariablePtr& x, const std::optional<Input>& low, const std::optional<Input>& high) {
  VariablePtr result;
  {
    const Scoped no_grad(context().records_gradients, false);
    Input y = x;
    if (low) y = binary(ElementOp::maximum, y, *low);
    if (high) y = binary(ElementOp::minimum, y, *high);
    result = variable_of(y);
  }
  const Input least = low.value_or(0.0), most = high.value_or(0.0);
  return recorded("clamp", result, {x, variable_of(least), variable_of(most)}, [&]() -> Node::Backward {
    // A bound has the slope if x is beyond it, even the upper one of crossed bounds.
    return [saved = Saved(x), saved_low = SavedInput(least, true), saved_high = SavedInput(most, true),
            has_low = low.has_value(), has_high = high.has_value()](const VariablePtr& g) {
      const Input value = saved.get(), lower = saved_low.get(), upper = saved_high.get();
      VariablePtr inside = g, below, above;
      if (has_low) inside = where(binary(ElementOp::greater_equal, value, lower), inside, 0.0);
      if (has_high) inside = where(binary(ElementOp::less_equal, value, upper), inside, 0.0);
      if (variable_of(lower)) {
        below = where(binary(ElementOp::less, value, lower), g, 0.0);
        if (has_high) below = where(binary(ElementOp::greater, lower, upper), 0.0, below);
      }
      if (variable_of(upper)) {
        above = where(binary(ElementOp::greater, value, upper), g, 0.0);
        if (has_low) above = where(binary(ElementOp::greater, lower, upper), g, above);
      }
      const auto of = [](const VariablePtr& gradient, const Input& operand) {
        return gradient ? sum_to(gradient, shape_of(operand)) : nullptr;
      };
      return std::vector<VariablePtr>{of(inside, value), of(below, lower), of(above, upper)};
    };
  });
}

VariablePtr sum_to(const VariablePtr& gradient, const Shape& shape) {
  if (gradient->shape() == shape) return gradient;
  Dims dims;
  const size_t more = gradient->shape().size() - shape.size();
  for (size_t i = 0; i < gradient->shape().size(); ++i) {
    if (i < more || shape[i - more] != gradient->shape()[i]) dims.push_back(static_cast<int64_t>(i));
  }
  return reshape(sum(gradient, dims, true), shape);
}

void write_unary(ElementOp op, const VariablePtr& x) {
  const VariablePtr before = check_writable(x, {}) ? clone(x) : x;
  Builder builder(compute_type(x->dtype()), x->shape());
  const ChainValue value = builder.input(before);
  builder.finish(x->operand(), builder.step(op, value));
  if (before == x) return;
  x->set_rewritten(record_unary(op, before, x->detached())->node());
}

void write_binary(ElementOp op, const VariablePtr& x, const Input& b) {
  const bool is_recorded = check_writable(x, {&b});
  const Input own = x;
  device_of({&own, &b});
  check_fits(x, shape_of(b));
  check_holds(x, b, makes_floats(op));
  // The gradient needs the old values of the product's operands, also if x is multiplied by itself.
  const VariablePtr before = is_recorded && op != ElementOp::add && op != ElementOp::subtract ? clone(x) : x;
  const VariablePtr operand = variable_of(b);
  const bool is_own = operand && operand->buffer() == x->buffer();
  const Input other = is_recorded && is_own ? clone(operand) : without_overlap(x, b);
  Builder builder(compute_type(x->dtype()), x->shape());
  const ChainValue left = builder.input(before);
  const ChainValue right = builder.input(other);
  const NodePtr history = x->node();
  builder.finish(x->operand(), builder.step(op, left, right));
  if (!is_recorded) return;
  VariablePtr source = before == x ? x->detached() : before;
  if (before == x) source->set_node(history);
  x->set_rewritten(record_binary(op, source, other, x->detached())->node());
}

void write_clamp(const VariablePtr& x, const std::optional<Input>& low, const std::optional<Input>& high) {
  const Input own = x;
  if (check_writable(x, {low ? &*low : &own, high ? &*high : &own}))
    return copy_into(x, clamp(clone(x), low, high));
  if (low) write_binary(ElementOp::maximum, x, *low);
  if (high) write_binary(ElementOp::minimum, x, *high);
}

void copy_into(const VariablePtr& x, const Input& source) {
  if (const auto* number = std::get_if<double>(&source)) check_reach(x->dtype(), *number);
  const bool is_recorded = check_writable(x, {&source});
  const Input own = x;
  device_of({&own, &source});
  check_fits(x, shape_of(source));
  const Input from = without_overlap(x, source);
  const VariablePtr variable = variable_of(from);
  const DType read = variable ? variable->dtype() : x->dtype();
  const bool is_wide = compute_type(read) != compute_type(x->dtype());
  Builder builder(is_wide ? DType::float64 : compute_type(x->dtype()), x->shape());
  builder.finish(x->operand(), builder.step(ElementOp::copy, builder.input(from)));
  if (!is_recorded) return;
  const VariablePtr result = recorded("copy_", x->detached(), {variable_of(source)}, [&]() -> Node::Backward {
    return [shape = shape_of(source)](const VariablePtr& g) -> std::vector<VariablePtr> {
      return {sum_to(g, shape)};
    };
  });
  x->set_rewritten(result->node());
}

void feed(const VariablePtr& x, const VariablePtr& given) {
  if (!given->buffer()->has_values()) fail_without_values();
  const VariablePtr source = given->buffer() == x->buffer() ? clone(given) : given;
  x->buffer()->mark_written();
  gather(source->operand(), 0, source->numel(), x->operand().bytes());
}

void write_addcmul(const VariablePtr& x, const Input& a, const Input& b, const Input& scale) {
  write_chain(x, {&a, &b, &scale}, [](Builder& builder, ChainValue self, const std::vector<ChainValue>& v) {
    const ChainValue both =
        builder.step(ElementOp::multiply, builder.step(ElementOp::multiply, v[0], v[1]), v[2]);
    return builder.step(ElementOp::add, self, both);
  });
}

void write_addcdiv(const VariablePtr& x, const Input& a, const Input& b, const Input& scale) {
  write_chain(x, {&a, &b, &scale}, [](Builder& builder, ChainValue self, const std::vector<ChainValue>& v) {
    const ChainValue both =
        builder.step(ElementOp::multiply, builder.step(ElementOp::divide, v[0], v[1]), v[2]);
    return builder.step(ElementOp::add, self, both);
  });
}

void write_lerp(const VariablePtr& x, const Input& end, const Input& weight) {
  write_chain(x, {&end, &weight}, [](Builder& builder, ChainValue self, const std::vector<ChainValue>& v) {
    const ChainValue way =
        builder.step(ElementOp::multiply, builder.step(ElementOp::subtract, v[0], self), v[1]);
    return builder.step(ElementOp::add, self, way);
  });
}

Device common_device(std::initializer_list<const VariablePtr*> variables) {
  std::optional<Device> device;
  for (const VariablePtr* variable : variables) {
    if (!*variable) continue;
    if (device && *device != (*variable)->device()) fail_two_devices();
    device = (*variable)->device();
  }
  return device.value_or(context().device);
}

}  // namespace cbk::compute
