// Operations on variables, with PyTorch's names and meanings. Every function checks its arguments
// immediately, makes its kernels (host/compute/context.hpp runs or records them), and records the gradient
// if one is needed.
//
// Errors: `shape` for shapes that do not fit, `dtype`, `value` for an argument out of range, `refused` for
// tensors on two devices and for writes in place that a gradient forbids. Dims count from 0, negative ones
// from the end.
#pragma once

#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "host/compute/element_op.hpp"
#include "host/compute/variable.hpp"

namespace cbk::compute {

/// An operand: a variable or a number. A number takes the dtype of the other side.
using Input = std::variant<VariablePtr, double>;
using Dims = std::vector<int64_t>;

// --- make.cpp
VariablePtr full(DType dtype, Shape shape, double value, Device device);
VariablePtr arange(DType dtype, double start, double stop, double step);
/// Uniform numbers from [0, 1), or normal ones; whole numbers from [low, high).
VariablePtr random_uniform(DType dtype, Shape shape);
VariablePtr random_normal(DType dtype, Shape shape);
VariablePtr random_integers(DType dtype, Shape shape, double low, double high);
/// 1 / (1 - p) with the probability 1 - p, else 0. float32.
VariablePtr dropout_mask(Shape shape, double p);
/// Bools: true, or with probability p false.
VariablePtr dropout_kept(Shape shape, double p);

// --- elements.cpp
VariablePtr unary(ElementOp op, const VariablePtr& x);
VariablePtr binary(ElementOp op, const Input& a, const Input& b);
VariablePtr where(const VariablePtr& condition, const Input& a, const Input& b);
VariablePtr cast(const VariablePtr& x, DType dtype);
VariablePtr clone(const VariablePtr& x);
/// The values on the host, without history.
VariablePtr host_copy(const VariablePtr& x);
VariablePtr contiguous(const VariablePtr& x);  // x itself if it is dense
/// x = op(x, b), or op(a, b), in the memory of x, with its dtype and shape.
void write_unary(ElementOp op, const VariablePtr& x);
void write_binary(ElementOp op, const VariablePtr& x, const Input& b);
void write_clamp(const VariablePtr& x, const std::optional<Input>& low, const std::optional<Input>& high);
void copy_into(const VariablePtr& x, const Input& source);
/// Replaces the elements of x by those of `given`, of the same shape and dtype, without a kernel.
void feed(const VariablePtr& x, const VariablePtr& given);
/// x + scale·a·b, x + scale·a/b, x + weight·(end - x), in the memory of x.
void write_addcmul(const VariablePtr& x, const Input& a, const Input& b, const Input& scale);
void write_addcdiv(const VariablePtr& x, const Input& a, const Input& b, const Input& scale);
void write_lerp(const VariablePtr& x, const Input& end, const Input& weight);
VariablePtr clamp(const VariablePtr& x, const std::optional<Input>& low, const std::optional<Input>& high);
/// Gradients of a broadcast operand: summed over what was repeated.
VariablePtr sum_to(const VariablePtr& gradient, const Shape& shape);

// --- views.cpp: no element is moved, unless a reshape needs it
VariablePtr reshape(const VariablePtr& x, Shape shape);  // one extent may be -1
VariablePtr permute(const VariablePtr& x, const Dims& dims);
VariablePtr transpose(const VariablePtr& x, int64_t a, int64_t b);
VariablePtr expand(const VariablePtr& x, const Shape& shape);
VariablePtr slice(const VariablePtr& x, int64_t dim, int64_t start, int64_t stop, int64_t step);
VariablePtr select(const VariablePtr& x, int64_t dim, int64_t index);
VariablePtr squeeze(const VariablePtr& x, std::optional<int64_t> dim);
VariablePtr unsqueeze(const VariablePtr& x, int64_t dim);
VariablePtr concat(const std::vector<VariablePtr>& parts, int64_t dim);
VariablePtr stack(const std::vector<VariablePtr>& parts, int64_t dim);

// --- reduce.cpp; no dims: over all
VariablePtr sum(const VariablePtr& x, const Dims& dims, bool keeps);
VariablePtr mean(const VariablePtr& x, const Dims& dims, bool keeps);
VariablePtr amax(const VariablePtr& x, const Dims& dims, bool keeps);
VariablePtr amin(const VariablePtr& x, const Dims& dims, bool keeps);
VariablePtr norm(const VariablePtr& x, const Dims& dims, bool keeps);
VariablePtr argmax(const VariablePtr& x, std::optional<int64_t> dim, bool keeps);
/// Values and positions of the k largest along the last dimension, the largest first.
std::pair<VariablePtr, VariablePtr> topk(const VariablePtr& x, int64_t k);

// --- products.cpp
VariablePtr matmul(const VariablePtr& a, const VariablePtr& b);
/// x · weightᵀ + bias; bias may be nullptr.
VariablePtr linear(const VariablePtr& x, const VariablePtr& weight, const VariablePtr& bias);

// --- rows.cpp
VariablePtr softmax(const VariablePtr& x, int64_t dim, bool is_log);
/// Over the last dims, which `weight` has. `bias` may be nullptr.
VariablePtr layer_norm(const VariablePtr& x, const VariablePtr& weight, const VariablePtr& bias, double eps);
VariablePtr rms_norm(const VariablePtr& x, const VariablePtr& weight, double eps);
enum class Reduction : uint8_t { none, mean, sum };
/// logits [..., classes], labels [...] of whole numbers.
VariablePtr cross_entropy(const VariablePtr& logits, const VariablePtr& labels, Reduction reduction,
                          int64_t ignored);

// --- lookup.cpp
/// Rows of weight [n, d] by whole numbers [...]: [..., d].
VariablePtr embedding(const VariablePtr& ids, const VariablePtr& weight);

// --- attention.cpp
struct AttentionOptions {
  bool causal = false;
  std::optional<double> scale;    // default: 1 / √width
  std::optional<int64_t> window;  // of a causal one: keys that a query sees, itself included
  std::optional<double> cap;      // scores become cap·tanh(score / cap), before mask and slopes
  double dropout = 0;             // the probability with which a weight becomes 0
  VariablePtr mask;    // broadcast to [batch, heads, queries, keys]; bool: true is seen; float: added
  VariablePtr slopes;  // ALiBi: [heads], times the distance
};
/// q [..., heads, queries, width], k and v [..., groups, keys, width], and groups divides heads. Memory
/// grows with the number of keys, not with its square.
VariablePtr attention(const VariablePtr& q, const VariablePtr& k, const VariablePtr& v,
                      const AttentionOptions& options);

// --- team_sum.cpp
/// The sum of each tensor over all ranks, in their order; of a mean, the ranks' values are weighted by their
/// shares of the batch. Collective: all ranks give tensors of the same shapes. Without shares, the tensors
/// themselves.
std::vector<VariablePtr> team_sum(const std::vector<VariablePtr>& given, bool is_mean);

// --- helpers of all of them
int64_t check_dim(int64_t dim, int64_t dims);
/// The device of all; `refused` if they are on two.
Device common_device(std::initializer_list<const VariablePtr*> variables);

}  // namespace cbk::compute
