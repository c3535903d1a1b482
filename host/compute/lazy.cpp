#include "host/compute/lazy.hpp"

#include <algorithm>
#include <cstring>

#include "host/base/error.hpp"
#include "host/compute/strided.hpp"
#include "host/tensor/expression.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk::compute {
namespace {

constexpr int64_t computed_together = 65536;  // elements that are computed at once

/// One output of a chain; the inputs are read part by part.
class ChainExpression final : public Expression {
 public:
  ChainExpression(ElementChain chain, std::vector<Tensor> inputs)
      : Expression(chain.outputs[0].to.dtype, numel_of(chain.domain)),
        chain_(std::move(chain)),
        inputs_(std::move(inputs)) {}

  Losses read(int64_t begin, std::span<std::byte> out) const override {
    const auto count = static_cast<int64_t>(out.size() / itemsize());
    for (int64_t done = 0; done < count; done += computed_together) {
      const int64_t size = std::min(computed_together, count - done);
      read_part(begin + done, size, out.data() + done * itemsize());
    }
    return {};
  }

  void each_input(const std::function<void(const Expression&)>& visit) const override {
    for (const Tensor& input : inputs_) visit(*input.expression());
  }
  [[nodiscard]] std::string parameters() const override {
    const auto value = [](const ChainValue& one) {
      return fmt::format("{}{}", static_cast<int>(one.kind), one.index);
    };
    std::string out = fmt::format("chain {} {}", name_of(chain_.type), value(chain_.outputs[0].value));
    for (const double constant : chain_.constants) out += fmt::format(" {}", constant);
    for (const ElementChain::Step& step : chain_.steps) {
      out += fmt::format(" {}", static_cast<int>(step.op));
      for (const ChainValue& operand : step.operands) out += fmt::format(":{}", value(operand));
    }
    return out;
  }

 private:
  void read_part(int64_t begin, int64_t count, std::byte* out) const {
    ElementChain chain = chain_;
    chain.domain = {count};
    for (size_t i = 0; i < inputs_.size(); ++i) {
      auto buffer = Buffer::allocate(static_cast<uint64_t>(count) * size_of(inputs_[i].dtype()));
      inputs_[i].expression()->read(begin, {buffer->data(), buffer->size()});
      chain.inputs[i] = whole(std::move(buffer), inputs_[i].dtype(), {count});
    }
    auto result = Buffer::allocate(static_cast<uint64_t>(count) * itemsize());
    chain.outputs[0].to = whole(result, dtype(), {count});
    Elementwise(std::move(chain)).run();
    std::memcpy(out, result->data(), result->size());
  }

  ElementChain chain_;
  std::vector<Tensor> inputs_;
};

bool has_one_element(const Operand& view) {
  for (size_t i = 0; i < view.shape.size(); ++i) {
    if (view.shape[i] != 1 && view.strides[i] != 0) return false;
  }
  return true;
}

/// A value of one element as a constant.
double constant_of(const Operand& view, const LazyValues& values) {
  Bytes element;
  if (const auto found = values.find(view.buffer.get()); found != values.end()) {
    element = found->second.to_bytes();
  } else {
    const auto* from = view.bytes();
    element.assign(from, from + size_of(view.dtype));
  }
  double out = 0;
  cast_elements(view.dtype, element.data(), DType::float64, reinterpret_cast<std::byte*>(&out), 1);
  return out;
}

/// The elements of a view with the shape of the domain.
Tensor tensor_of(const Operand& view, const LazyValues& values) {
  const auto found = values.find(view.buffer.get());
  if (found == values.end()) return view.to_tensor();
  if (view.is_contiguous() && view.offset == 0 && view.numel() == found->second.numel())
    return found->second.reshape(view.shape);
  if (std::find(view.strides.begin(), view.strides.end(), 0) != view.strides.end()) {
    fail(Errc::refused,
         "a formula over tensors of a checkpoint cannot broadcast one of shape {} to {}; read it into memory "
         "before the formula: cstorch.tensor(t):clone()",
         to_string(found->second.shape()), to_string(view.shape));
  }
  fail(Errc::refused,
       "a formula over tensors of a checkpoint can only use them whole, not a slice or another order of "
       "their elements");
}

bool is_lazy(const Kernel& kernel, const LazyValues& values) {
  return std::any_of(kernel.reads().begin(), kernel.reads().end(),
                     [&](const Operand& read) { return values.contains(read.buffer.get()); });
}

void give_memory(const Kernel& kernel) {
  for (const auto* operands : {&kernel.reads(), &kernel.writes()}) {
    for (const Operand& operand : *operands) {
      if (!operand.buffer->has_memory()) operand.buffer->place(allocate_arena(operand.buffer->size()), 0);
    }
  }
}

void add_values(const ElementChain& chain, LazyValues& values) {
  std::vector<Tensor> made;
  for (size_t i = 0; i < chain.outputs.size(); ++i) {
    const Operand& to = chain.outputs[i].to;
    const bool is_whole = to.is_contiguous() && to.offset == 0 &&
                          to.buffer->size() == static_cast<uint64_t>(to.numel()) * size_of(to.dtype);
    if (!is_whole || to.buffer->has_memory()) {
      fail(Errc::refused,
           "a formula over tensors of a checkpoint writes part of a tensor, or one in memory: {} {}",
           name_of(to.dtype), to_string(to.shape));
    }
    made.push_back(lazy_output(chain, i, values));
  }
  for (size_t i = 0; i < made.size(); ++i) values.insert_or_assign(chain.outputs[i].to.buffer.get(), made[i]);
}

}  // namespace

Tensor lazy_output(const ElementChain& chain, size_t output, const LazyValues& values) {
  ElementChain one = chain;
  one.outputs = {chain.outputs[output]};
  one = pruned(one);
  std::vector<Tensor> inputs;
  std::vector<Operand> views;
  std::vector<ChainValue> now;
  for (const Operand& input : one.inputs) {
    if (has_one_element(input)) {
      now.push_back({ChainValue::Kind::constant, static_cast<int>(one.constants.size())});
      one.constants.push_back(constant_of(input, values));
    } else {
      now.push_back({ChainValue::Kind::input, static_cast<int>(inputs.size())});
      inputs.push_back(tensor_of(input, values));
      views.push_back(input);
    }
  }
  const auto renumber = [&](ChainValue& value) {
    if (value.kind == ChainValue::Kind::input) value = now[value.index];
  };
  for (auto& step : one.steps) {
    for (int i = 0; i < traits_of(step.op).operands; ++i) renumber(step.operands[i]);
  }
  renumber(one.outputs[0].value);
  one.inputs = std::move(views);
  const Shape shape = one.domain;
  return Tensor::from_expression(std::make_shared<ChainExpression>(std::move(one), std::move(inputs)), shape);
}

void run_lazily(std::vector<RecordedStep>& steps, LazyValues& values) {
  for (RecordedStep& step : steps) {
    if (step.condition != no_condition) {
      fail(Errc::refused,
           "a formula over tensors of a checkpoint cannot depend on a condition (a GradScaler's skipped "
           "steps)");
    }
    const auto* elementwise = dynamic_cast<const Elementwise*>(step.kernel.get());
    const bool has_elements = elementwise != nullptr && numel_of(elementwise->chain().domain) > 1;
    const bool writes_lazy =
        std::any_of(step.kernel->writes().begin(), step.kernel->writes().end(),
                    [&](const Operand& written) { return values.contains(written.buffer.get()); });
    if (!is_lazy(*step.kernel, values) && !has_elements && !writes_lazy) {
      give_memory(*step.kernel);
      step.kernel->run();
      continue;
    }
    if (elementwise == nullptr) {
      fail(Errc::refused,
           "a formula over tensors of a checkpoint can have element-wise operators only: sums, norms and "
           "products need whole tensors "
           "in memory");
    }
    add_values(elementwise->chain(), values);
  }
}

}  // namespace cbk::compute
