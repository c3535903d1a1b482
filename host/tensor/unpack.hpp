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
/// codes.
class UnpackExpression final : public Expression {
 public:
  UnpackExpression(ExpressionPtr input, const Packing& packing);
  Losses read(int64_t begin, std::span<std::byte> out) const override;
  [[nodiscard]] int64_t granularity() const override;
  bool drop(int64_t begin, int64_t end) const noexcept override;
  void each_input(const std::function<void(const Expression&)>& visit) const override { visit(*input_); }
  [[nodiscard]] std::string parameters() const override;

 private:
  /// The numbers of `count` elements into `out`.
  void unpack(const std::byte* elements, int64_t count, float* out) const;

  ExpressionPtr input_;
  int64_t codes_;  // of an element
  UnpackTables tables_;
};

/// The numbers packed into the last dim of a tensor of 8, 16 or 32-bit integers: float32 of shape
/// [..., n · codes of an element]. Errors: `dtype`; `value` if the packing does not fit the elements.
Tensor unpacked(const Tensor& tensor, const Packing& packing);

}  // namespace cbk
