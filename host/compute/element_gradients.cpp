#include "host/compute/element_gradients.hpp"

#include "host/compute/operands.hpp"
#include "host/compute/promote.hpp"
#include "host/compute/tape.hpp"

namespace cbk::compute {
namespace {

VariablePtr product(const VariablePtr& a, const Input& b) {
  return binary(ElementOp::multiply, a, b);
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

}  // namespace

VariablePtr record_unary(ElementOp op, const VariablePtr& x, const VariablePtr& y) {
  if (traits_of(op).gradient == ElementTraits::Gradient::none) return y;
  return recorded(std::string(traits_of(op).name), y, {x}, [&]() -> Node::Backward {
    const Saved saved(traits_of(op).uses_result() ? y : x);
    return [op, saved](const VariablePtr& g) -> std::vector<VariablePtr> {
      const DType type = traits_of(op).has_steps() ? compute_type(g->dtype()) : g->dtype();
      const VariablePtr value = cast(saved.get(), type);
      return {cast(unary_gradient(op, cast(g, type), value, value), g->dtype())};
    };
  });
}

VariablePtr record_binary(ElementOp op, const Input& a, const Input& b, const VariablePtr& y) {
  if (traits_of(op).gradient == ElementTraits::Gradient::none) return y;
  return recorded(
      std::string(traits_of(op).name), y, {variable_of(a), variable_of(b)}, [&]() -> Node::Backward {
        const bool needs_a = requires_grad(a), needs_b = requires_grad(b);
        const bool is_sum = op == ElementOp::add || op == ElementOp::subtract;
        const bool is_product = op == ElementOp::multiply;
        const SavedInput saved_a(a, !is_sum && (!is_product || needs_b));
        const SavedInput saved_b(b, !is_sum && (!is_product || needs_a));
        return [=](const VariablePtr& g) {
          const DType type = traits_of(op).has_steps() ? compute_type(g->dtype()) : g->dtype();
          const auto operand = [&](const SavedInput& saved) {
            return traits_of(op).has_steps() ? cast(saved.get(), type) : saved.get();
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

}  // namespace cbk::compute
