// Operations on single elements. One list for eager operators, recorded steps and fused formulas.
//
// A new one needs its name here and in element_op.cpp, its loop in element_loops.cpp, its gradient in
// elements.cpp, its method in bindings/variable_math.cpp, and a line in tests/lua/cstorch_gradients_test.lua.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cbk::compute {

enum class ElementOp : uint8_t {
  // of one element
  copy,
  negate,
  absolute,
  exp,
  log,
  sqrt,
  rsqrt,
  square,
  sign,
  floor,
  ceil,
  cos,
  sin,
  tanh,
  sigmoid,
  relu,
  erf,
  gelu,
  gelu_slope,
  gelu_tanh,
  gelu_tanh_slope,
  silu,
  silu_slope,
  reciprocal,
  is_finite,
  logical_not,
  // of two
  add,
  subtract,
  multiply,
  divide,
  power,
  maximum,
  minimum,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  logical_and,
  logical_or,
  // of three
  where,  // the second where the first is not zero, else the third
};
inline constexpr int element_op_count = static_cast<int>(ElementOp::where) + 1;

/// Number of operands.
int arity(ElementOp op);
/// PyTorch's name: "mul", "gt".
std::string_view name_of(ElementOp op);
/// Whether the result is true or false.
bool is_predicate(ElementOp op);

/// out[i] = op(a[i], b[i], c[i]); an operand in `scalars` (bit 0: a, bit 1: b, bit 2: c) has one element.
/// `out` may be one of the operands. All have one type; predicates return 0 and 1.
using ElementLoop = void (*)(const void* a, const void* b, const void* c, void* out, size_t count);

/// The loop for this machine's instruction set and elements of type T: float, double or int64_t. nullptr if
/// the operation does not exist for T.
template <typename T>
ElementLoop find_loop(ElementOp op, unsigned scalars);

/// The loop of two operations on floats in one pass, each rounded separately: second(first(a, b), c), or
/// second(c, first(a, b)) if `is_last`. A first operation of one operand has it as a and b. nullptr for pairs
/// without a loop.
ElementLoop find_pair(ElementOp first, ElementOp second, bool is_last, unsigned scalars);

}  // namespace cbk::compute
