// Lazy tensors that merge the weights of several models. All are computed in the dtype of their operands,
// float32 or float64; what has to be known of a whole tensor is measured when its first block is read.
// Formulas: mergekit (arcee-ai/mergekit, mergekit/merge_methods and mergekit/sparsify.py).
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "host/tensor/expression.hpp"
#include "host/tensor/trim.hpp"

namespace cbk {

/// Elements computed from those of several inputs at the same position.
class MergedExpression : public Expression {
 public:
  explicit MergedExpression(std::vector<ExpressionPtr> inputs);
  Losses read(int64_t begin, std::span<std::byte> out) const final;
  [[nodiscard]] int64_t granularity() const final;
  bool drop(int64_t begin, int64_t end) const noexcept final;
  void each_input(const std::function<void(const Expression&)>& visit) const final;
  [[nodiscard]] bool is_computed() const final { return true; }

 protected:
  /// Elements from position `begin` on, from those of the inputs, which it may change.
  virtual void mix(int64_t begin, std::span<std::byte* const> inputs, std::byte* out,
                   int64_t count) const = 0;
  [[nodiscard]] const std::vector<ExpressionPtr>& inputs() const { return inputs_; }

 private:
  /// The room of each input.
  [[nodiscard]] std::vector<std::byte*> parted(std::span<std::byte> room) const;
  Losses read_chunk(int64_t begin, std::span<std::byte* const> rooms, std::span<std::byte> out) const;
  /// The number of results that are not finite although all elements they come from are.
  [[nodiscard]] int64_t overflowed(int64_t begin, std::span<std::byte* const> rooms,
                                   std::span<const std::byte> out) const;
  std::vector<ExpressionPtr> inputs_;
  std::vector<ExpressionPtr> stored_;  // the same elements before a cast that loses nothing
};

/// The weighted sum of tensors of one shape and dtype; `is_normalized`: divided by the sum of the weights.
/// Errors: `shape`, `dtype`; `value` if the sum of the weights is 0.
Tensor weighted_sum(const std::vector<Tensor>& tensors, std::vector<double> weights, bool is_normalized);

/// Spherical linear interpolation of two tensors as two vectors, from `a` (t = 0) to `b` (t = 1); linear if
/// they are nearly parallel (|cos| > 0.9995). Both are read once more for the angle. Errors: as above.
Tensor slerp(const Tensor& a, const Tensor& b, double t);

struct DifferenceRule {
  std::vector<double> weights;
  std::vector<TrimRule> trims;
  bool has_consensus = false;
  bool is_normalized = false;
  double factor = 1;
};

/// base + factor · (the mix of the differences tuned - base). Errors: as above; `value` if a trim keeps no
/// element.
Tensor add_differences(const Tensor& base, const std::vector<Tensor>& tuned, DifferenceRule rule);

}  // namespace cbk
