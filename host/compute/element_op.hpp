// Operations on single elements. One list (element_ops.def) for eager operators, recorded steps, fused
// formulas and methods.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cbk::compute {

enum class ElementOp : uint8_t {
#define CBK_ELEMENT_OP(op, ...) op,
#include "host/compute/element_ops.def"
#undef CBK_ELEMENT_OP
};

struct ElementTraits {
  enum class Access : uint8_t { method, inner };
  enum class Result : uint8_t { same, floats, truth };
  enum class Gradient : uint8_t { none, simple, simple_of_result, formula, formula_of_result };
  std::string_view name;
  Access access;
  int operands;
  Result result;
  Gradient gradient;

  [[nodiscard]] constexpr bool is_predicate() const { return result == Result::truth; }
  [[nodiscard]] constexpr bool makes_floats() const { return result == Result::floats; }
  /// Whether a gradient takes several steps. In half precision only the end result is rounded.
  [[nodiscard]] constexpr bool has_steps() const {
    return gradient == Gradient::formula || gradient == Gradient::formula_of_result;
  }
  [[nodiscard]] constexpr bool uses_result() const {
    return gradient == Gradient::simple_of_result || gradient == Gradient::formula_of_result;
  }
};

inline constexpr auto element_traits = std::to_array<ElementTraits>({
#define CBK_ELEMENT_OP(op, name, access, operands, result, gradient)             \
  {name, ElementTraits::Access::access, operands, ElementTraits::Result::result, \
   ElementTraits::Gradient::gradient},
#include "host/compute/element_ops.def"
#undef CBK_ELEMENT_OP
});
inline constexpr int element_op_count = static_cast<int>(element_traits.size());

constexpr const ElementTraits& traits_of(ElementOp op) {
  return element_traits[static_cast<size_t>(op)];
}

/// out[i] = op(a[i], b[i], c[i]); an operand in `scalars` (bit 0: a, bit 1: b, bit 2: c) has one element.
/// `out` may be one of the operands. All have one type; operations of truth return 0 and 1.
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
