// Operators that write into the memory of their first operand.
#include "host/base/error.hpp"
#include "host/compute/element_gradients.hpp"
#include "host/compute/operands.hpp"
#include "host/compute/promote.hpp"
#include "host/compute/tape.hpp"

namespace cbk::compute {
namespace {

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
  ChainBuilder builder(compute_type(x->dtype()), x->shape());
  const ChainValue self = builder.input(x);
  std::vector<ChainValue> values;
  values.reserve(inputs.size());
  for (const Input& input : inputs) values.push_back(builder.input(input));
  const ChainValue result = body(builder, self, values);
  builder.finish(x->operand(), result);
}

}  // namespace

void write_unary(ElementOp op, const VariablePtr& x) {
  const VariablePtr before = check_writable(x, {}) ? clone(x) : x;
  ChainBuilder builder(compute_type(x->dtype()), x->shape());
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
  check_holds(x, b, traits_of(op).makes_floats());
  // The gradient needs the old values of the product's operands, also if x is multiplied by itself.
  const VariablePtr before = is_recorded && op != ElementOp::add && op != ElementOp::subtract ? clone(x) : x;
  const VariablePtr operand = variable_of(b);
  const bool is_own = operand && operand->buffer() == x->buffer();
  const Input other = is_recorded && is_own ? clone(operand) : without_overlap(x, b);
  ChainBuilder builder(compute_type(x->dtype()), x->shape());
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
  ChainBuilder builder(is_wide ? DType::float64 : compute_type(x->dtype()), x->shape());
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
  write_chain(x, {&a, &b, &scale},
              [](ChainBuilder& builder, ChainValue self, const std::vector<ChainValue>& v) {
                const ChainValue both =
                    builder.step(ElementOp::multiply, builder.step(ElementOp::multiply, v[0], v[1]), v[2]);
                return builder.step(ElementOp::add, self, both);
              });
}

void write_addcdiv(const VariablePtr& x, const Input& a, const Input& b, const Input& scale) {
  write_chain(x, {&a, &b, &scale},
              [](ChainBuilder& builder, ChainValue self, const std::vector<ChainValue>& v) {
                const ChainValue both =
                    builder.step(ElementOp::multiply, builder.step(ElementOp::divide, v[0], v[1]), v[2]);
                return builder.step(ElementOp::add, self, both);
              });
}

void write_lerp(const VariablePtr& x, const Input& end, const Input& weight) {
  write_chain(x, {&end, &weight},
              [](ChainBuilder& builder, ChainValue self, const std::vector<ChainValue>& v) {
                const ChainValue way =
                    builder.step(ElementOp::multiply, builder.step(ElementOp::subtract, v[0], self), v[1]);
                return builder.step(ElementOp::add, self, way);
              });
}

}  // namespace cbk::compute
