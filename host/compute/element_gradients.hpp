// Gradients of operators on single elements.
#pragma once

#include "host/compute/operators.hpp"

namespace cbk::compute {

/// y = op(x), with its gradient recorded if one is needed.
VariablePtr record_unary(ElementOp op, const VariablePtr& x, const VariablePtr& y);
/// y = op(a, b), likewise.
VariablePtr record_binary(ElementOp op, const Input& a, const Input& b, const VariablePtr& y);

}  // namespace cbk::compute
