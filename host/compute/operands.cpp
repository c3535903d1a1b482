#include "host/compute/operands.hpp"

#include "host/base/error.hpp"

namespace cbk::compute {
namespace {

[[noreturn]] void fail_two_devices() {
  fail(Errc::refused,
       "a tensor on the CSX and one on the CPU cannot be used together: make it inside of the step, or put "
       "it into the model "
       "with register_buffer");
}

}  // namespace

Shape shape_of(const Input& operand) {
  const auto* variable = std::get_if<VariablePtr>(&operand);
  return variable == nullptr ? Shape{} : (*variable)->shape();
}

VariablePtr variable_of(const Input& operand) {
  const auto* variable = std::get_if<VariablePtr>(&operand);
  return variable == nullptr ? nullptr : *variable;
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

bool requires_grad(const Input& input) {
  const VariablePtr variable = variable_of(input);
  return variable && variable->requires_grad();
}

Input cast(const Input& operand, DType dtype) {
  const VariablePtr variable = variable_of(operand);
  return variable ? Input(compute::cast(variable, dtype)) : operand;
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
