// Operators on single elements.
#include <algorithm>
#include <array>
#include <cmath>

#include "host/base/error.hpp"
#include "host/compute/context.hpp"
#include "host/compute/element_gradients.hpp"
#include "host/compute/operands.hpp"
#include "host/compute/promote.hpp"
#include "host/compute/strided.hpp"
#include "host/compute/tape.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk::compute {
namespace {

DType dtype_for(ElementOp op, DType operands) {
  if (traits_of(op).is_predicate()) return DType::boolean;
  return traits_of(op).makes_floats() && !is_floating(operands) ? DType::float32 : operands;
}

/// The type of the arithmetic: the result's, or for predicates the operands'.
DType type_for(ElementOp op, DType operands, DType result) {
  return compute_type(traits_of(op).is_predicate() ? operands : result);
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

/// x^2, x^0.5 and the like have operations of their own, which are exact and fast.
std::optional<ElementOp> simple_power(double exponent) {
  if (exponent == 2) return ElementOp::square;
  if (exponent == 0.5) return ElementOp::sqrt;
  if (exponent == -0.5) return ElementOp::rsqrt;
  if (exponent == 1) return ElementOp::copy;
  if (exponent == -1) return ElementOp::reciprocal;
  return std::nullopt;
}

}  // namespace

VariablePtr unary(ElementOp op, const VariablePtr& x) {
  const DType dtype = dtype_for(op, x->dtype());
  VariablePtr y = Variable::empty(dtype, x->shape(), x->device());
  ChainBuilder builder(type_for(op, x->dtype(), dtype), x->shape());
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
  ChainBuilder builder(type, std::move(shape));
  const bool is_test = traits_of(op).is_predicate();
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
  ChainBuilder builder(compute_type(dtype), shape);
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
  ChainBuilder builder(type, x->shape());
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
  ChainBuilder builder(compute_type(x->dtype()), x->shape());
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

}  // namespace cbk::compute
