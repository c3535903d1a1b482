// Operands of operators on single elements: numbers and variables, and the chain of steps that is made of
// them.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>

#include "host/compute/context.hpp"
#include "host/compute/elementwise.hpp"
#include "host/compute/operators.hpp"
#include "host/compute/strided.hpp"
#include "host/compute/tape.hpp"

namespace cbk::compute {

Shape shape_of(const Input& operand);           // of a number: {}
VariablePtr variable_of(const Input& operand);  // nullptr for a number
bool requires_grad(const Input& operand);
Input cast(const Input& operand, DType dtype);  // a number stays one

/// Errors: `refused` if they are on two.
Device device_of(std::initializer_list<const Input*> operands);

/// Builds a chain step by step.
class ChainBuilder {
 public:
  ChainBuilder(DType type, Shape domain) {
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

}  // namespace cbk::compute
