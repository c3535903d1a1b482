#include "host/compute/element_op.hpp"

#include <array>

namespace cbk::compute {
namespace {

constexpr std::array<std::string_view, element_op_count> names = {"copy",
                                                                  "neg",
                                                                  "abs",
                                                                  "exp",
                                                                  "log",
                                                                  "sqrt",
                                                                  "rsqrt",
                                                                  "square",
                                                                  "sign",
                                                                  "floor",
                                                                  "ceil",
                                                                  "cos",
                                                                  "sin",
                                                                  "tanh",
                                                                  "sigmoid",
                                                                  "relu",
                                                                  "erf",
                                                                  "gelu",
                                                                  "gelu backward",
                                                                  "gelu",
                                                                  "gelu backward",
                                                                  "silu",
                                                                  "silu backward",
                                                                  "reciprocal",
                                                                  "isfinite",
                                                                  "logical_not",
                                                                  "add",
                                                                  "sub",
                                                                  "mul",
                                                                  "div",
                                                                  "pow",
                                                                  "maximum",
                                                                  "minimum",
                                                                  "eq",
                                                                  "ne",
                                                                  "lt",
                                                                  "le",
                                                                  "gt",
                                                                  "ge",
                                                                  "logical_and",
                                                                  "logical_or",
                                                                  "where"};

}  // namespace

int arity(ElementOp op) {
  if (op == ElementOp::where) return 3;
  return op < ElementOp::add ? 1 : 2;
}

std::string_view name_of(ElementOp op) {
  return names[static_cast<size_t>(op)];
}

bool is_predicate(ElementOp op) {
  return op == ElementOp::is_finite || op == ElementOp::logical_not ||
         (op >= ElementOp::equal && op <= ElementOp::logical_or);
}

}  // namespace cbk::compute
