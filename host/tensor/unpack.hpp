// Small codes packed into the bits of integers, as quantised weights are stored.
#pragma once

#include <vector>

#include "host/tensor/expression.hpp"
#include "host/tensor/kernels/unpack.hpp"

namespace cbk {

/// How codes lie in an integer, and what they mean.
struct Packing {
  int bits = 4;               // of a code: 1, 2 or 4
  std::vector<int> places;    // for each number of an element in turn: which of its codes, 0 being the lowest
  std::vector<float> values;  // the number that each code means: 2^bits
};

/// float32 numbers from the codes of another expression: each of its elements becomes as many as it has
/// codes, `inner` apart.
class UnpackExpression final : public Expression {
 public:
  UnpackExpression(ExpressionPtr input, const Packing& packing, int64_t inner);
  Losses read(int64_t begin, std::span<std::byte> out) const override;
  [[nodiscard]] int64_t granularity() const override;
  bool drop(int64_t begin, int64_t end) const noexcept override;
  void each_input(const std::function<void(const Expression&)>& visit) const override { visit(*input_); }
  [[nodiscard]] std::string parameters() const override;

 private:
  /// Numbers that lie side by side.
  Losses read_elements(int64_t begin, std::span<std::byte> out) const;
  void unpack(const std::byte* elements, int64_t count, float* out) const;
  /// Numbers of one code after the other.
  Losses read_planes(int64_t begin, std::span<std::byte> out) const;

  ExpressionPtr input_;
  int64_t codes_;  // of an element
  int64_t inner_;
  UnpackTables tables_;
};

/// The numbers packed along `dim` of a tensor of 8, 16 or 32-bit integers: float32 of the same shape, but for
/// that dim, which is as many times longer as an element has codes. Errors: `dtype`; `shape`; `value` if the
/// packing does not fit the elements.
Tensor unpacked(const Tensor& tensor, const Packing& packing, int64_t dim = -1);

}  // namespace cbk
