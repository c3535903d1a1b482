#include "host/compute/variable.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/compute/context.hpp"
#include "host/compute/program.hpp"
#include "host/compute/promote.hpp"
#include "host/compute/strided.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk::compute {
namespace {

void check_dtype(DType dtype) {
  switch (dtype) {
    case DType::boolean:
    case DType::uint8:
    case DType::int32:
    case DType::int64:
    case DType::float16:
    case DType::bfloat16:
    case DType::float32:
    case DType::float64:
      return;
    default:
      fail(Errc::dtype,
           "cannot compute with {}; cast it to bool, uint8, int32, int64, float16, bfloat16, float32 or "
           "float64",
           name_of(dtype));
  }
}

}  // namespace

std::string_view name_of(Device device) {
  return device == Device::cpu ? "cpu" : "csx";
}

VariablePtr Variable::empty(DType dtype, Shape shape, Device device) {
  check_dtype(dtype);
  const uint64_t size = static_cast<uint64_t>(numel_of(shape)) * size_of(dtype);
  BufferPtr buffer = context().program != nullptr ? Buffer::planned(size, context().program->number())
                                                  : Buffer::allocate(size);
  return std::make_shared<Variable>(whole(std::move(buffer), dtype, std::move(shape)), device);
}

VariablePtr Variable::empty(DType dtype, Shape shape) {
  return empty(dtype, std::move(shape), context().device);
}

VariablePtr Variable::from_tensor(const Tensor& tensor) {
  check_dtype(tensor.dtype());
  Program* program = context().program;
  if (program != nullptr && program->reading() == Program::Reading::in_place && tensor.numel() > 1) {
    VariablePtr out = empty(tensor.dtype(), tensor.shape());
    program->add_source(out->buffer(), tensor);
    return out;
  }
  auto buffer = Buffer::allocate(tensor.nbytes());
  tensor.read(0, {buffer->data(), buffer->size()});
  return std::make_shared<Variable>(whole(std::move(buffer), tensor.dtype(), tensor.shape()),
                                    context().device);
}

VariablePtr Variable::from_doubles(DType dtype, Shape shape, std::span<const double> values) {
  check_dtype(dtype);
  for (const double value : values) check_reach(dtype, value);
  auto buffer = Buffer::allocate(values.size() * size_of(dtype));
  cast_elements(DType::float64, reinterpret_cast<const std::byte*>(values.data()), dtype, buffer->data(),
                static_cast<int64_t>(values.size()));
  return std::make_shared<Variable>(whole(std::move(buffer), dtype, std::move(shape)), context().device);
}

void Variable::set_requires_grad(bool value) {
  if (value && !is_floating(dtype())) {
    fail(Errc::dtype, "only tensors of floats can have a gradient, not {}", name_of(dtype()));
  }
  if (!is_leaf())
    fail(Errc::usage, "requires_grad can be set on a leaf only; use detach() for a copy without history");
  requires_grad_ = value;
}

void Variable::set_view() {
  is_view_ = true;
  rewrites_ = operand_.buffer->rewrites();
}

void Variable::set_rewritten(NodePtr node) {
  node_ = std::move(node);
  operand_.buffer->mark_rewritten();
}

void Variable::check_history() const {
  if (!is_view_ || rewrites_ == operand_.buffer->rewrites()) return;
  fail(Errc::refused,
       "this view of shape {} was taken before its tensor was written in place, and its gradient does not "
       "know of that: take the view after the write",
       to_string(shape()));
}

VariablePtr Variable::detached() const {
  return std::make_shared<Variable>(operand_, device_);
}

void Variable::check_readable() const {
  if (Program* program = context().program) {
    const Program::Reading reading = program->reading();
    if (reading == Program::Reading::refused) {
      fail(Errc::refused,
           "the value of a tensor cannot be read inside of a compiled step, which is recorded once and then "
           "replayed: keep to "
           "tensors, no numbers, prints or conditions, and read values in a function made with "
           "cstorch.step_closure");
    }
    if (reading == Program::Reading::runs_early) program->run_early();
  }
  if (!operand_.buffer->has_values()) fail_without_values();
  if (device_ == Device::csx && !context().may_read_device) {
    fail(Errc::refused,
         "the value of a tensor on the CSX can be read in a function made with cstorch.step_closure, from "
         "its arguments; weights "
         "and optimizer state on checkpoint steps only");
  }
}

Tensor Variable::to_tensor() const {
  check_readable();
  return operand_.to_tensor();
}

template <typename T>
std::vector<T> Variable::to_values(int64_t most) const {
  check_readable();
  const int64_t count = std::min(most, numel());
  std::vector<T> out(static_cast<size_t>(count));
  if (count == 0) return out;
  std::vector<std::byte> dense(static_cast<size_t>(count) * size_of(dtype()));
  gather(operand_, 0, count, dense.data());
  constexpr DType type = std::is_same_v<T, double> ? DType::float64 : DType::int64;
  cast_elements(dtype(), dense.data(), type, reinterpret_cast<std::byte*>(out.data()), count);
  return out;
}
template std::vector<double> Variable::to_values(int64_t) const;
template std::vector<int64_t> Variable::to_values(int64_t) const;

double Variable::item() const {
  if (numel() != 1) {
    fail(Errc::value, "item() needs a tensor of one element, not of shape {}; use tolist()",
         to_string(shape()));
  }
  return to_doubles()[0];
}

}  // namespace cbk::compute
