// Matrix products with batches and gradients.
#include <algorithm>

#include "host/base/error.hpp"
#include "host/base/parallel.hpp"
#include "host/compute/function_kernel.hpp"
#include "host/compute/gemm.hpp"
#include "host/compute/operators.hpp"
#include "host/compute/promote.hpp"
#include "host/compute/strided.hpp"
#include "host/compute/tape.hpp"

namespace cbk::compute {
namespace {

/// Whether the last two dims are a dense matrix or a transposed one.
bool is_matrix(const Operand& x) {
  const size_t n = x.shape.size();
  const int64_t rows = x.shape[n - 2], columns = x.shape[n - 1];
  const int64_t down = x.strides[n - 2], across = x.strides[n - 1];
  const bool is_plain = (across == 1 || columns == 1) && (down >= columns || rows == 1);
  const bool is_transposed = (down == 1 || rows == 1) && (across >= rows || columns == 1);
  return is_plain || is_transposed;
}

template <typename T>
Matrix<T> matrix_of(const Operand& x, int64_t offset) {
  const size_t n = x.shape.size();
  const int64_t rows = x.shape[n - 2], columns = x.shape[n - 1];
  const int64_t down = x.strides[n - 2], across = x.strides[n - 1];
  auto* data = reinterpret_cast<T*>(x.buffer->data()) + x.offset + offset;
  if ((across == 1 || columns == 1) && (down >= columns || rows == 1))
    return {data, std::max(rows == 1 ? columns : down, columns), false};
  return {data, std::max(columns == 1 ? rows : across, rows), true};
}

/// The offset of each matrix of the batch, in elements from the first.
std::vector<int64_t> batch_offsets(const Operand& x, const Shape& batch) {
  Operand outer{x.buffer, x.dtype, 0, {}, {}};
  outer.shape.assign(x.shape.begin(), x.shape.end() - 2);
  outer.strides.assign(x.strides.begin(), x.strides.end() - 2);
  outer = expanded(outer, batch);
  std::vector<int64_t> out(static_cast<size_t>(numel_of(batch)));
  for (size_t i = 0; i < out.size(); ++i) {
    auto rest = static_cast<int64_t>(i);
    for (size_t dim = batch.size(); dim-- > 0;) {
      out[i] += rest % batch[dim] * outer.strides[dim];
      rest /= batch[dim];
    }
  }
  return out;
}

template <typename T>
class Product {
 public:
  Product(const Operand& a, const Operand& b, const Operand& out) {
    Shape batch(out.shape.begin(), out.shape.end() - 2);
    a_offsets_ = batch_offsets(a, batch);
    b_offsets_ = batch_offsets(b, batch);
    rows_ = out.shape[out.shape.size() - 2];
    columns_ = out.shape.back();
    depth_ = a.shape.back();
  }

  void operator()(const std::vector<Operand>& reads, const std::vector<Operand>& writes) const {
    T* out = writes[0].data<T>();
    if (depth_ == 0) return static_cast<void>(std::fill_n(out, writes[0].numel(), T{}));
    const auto one = [&](int64_t i, auto multiply) {
      multiply(matrix_of<const T>(reads[0], a_offsets_[i]), matrix_of<const T>(reads[1], b_offsets_[i]),
               Matrix<T>{out + i * rows_ * columns_, columns_, false});
    };
    const auto count = static_cast<int64_t>(a_offsets_.size());
    if (rows_ == 0 || columns_ == 0) return;
    if (count == 1) {
      return one(0, [&](auto a, auto b, auto to) { parallel_gemm<T>(a, b, to, rows_, columns_, depth_); });
    }
    parallel_for(count, [&](int64_t i) {
      one(i, [&](auto a, auto b, auto to) { gemm<T>(a, b, to, rows_, columns_, depth_); });
    });
  }

 private:
  std::vector<int64_t> a_offsets_, b_offsets_;
  int64_t rows_ = 0, columns_ = 0, depth_ = 0;
};

VariablePtr as_matrix(const VariablePtr& x, DType type) {
  VariablePtr out = cast(x, type);
  return is_matrix(out->operand()) ? out : contiguous(out);
}

VariablePtr product(const VariablePtr& a, const VariablePtr& b);

/// a · b with rows and columns in the memory order of `like`: the gradient of a transposed weight needs the
/// layout of the weight.
VariablePtr product_like(const VariablePtr& like, const VariablePtr& a, const VariablePtr& b) {
  const Shape& strides = like->operand().strides;
  if (strides[strides.size() - 2] >= strides.back()) return product(a, b);
  return transpose(product(transpose(b, -1, -2), transpose(a, -1, -2)), -1, -2);
}

/// (…, m, k) · (…, k, n), both with at least two dims.
VariablePtr product(const VariablePtr& a, const VariablePtr& b) {
  const size_t na = a->shape().size(), nb = b->shape().size();
  if (a->shape()[na - 1] != b->shape()[nb - 2]) {
    fail(Errc::shape,
         "matmul: {} and {} do not fit together: the last extent of the first must be the second-to-last of "
         "the second",
         to_string(a->shape()), to_string(b->shape()));
  }
  const Input left = a, right = b;
  const DType dtype = result_dtype({&left, &right});
  if (!is_floating(dtype))
    fail(Errc::dtype, "matmul of {} is not possible: cast it to float32 first", name_of(dtype));
  const Device device = common_device({&a, &b});
  Shape shape = broadcast(Shape(a->shape().begin(), a->shape().end() - 2),
                          Shape(b->shape().begin(), b->shape().end() - 2));
  shape.push_back(a->shape()[na - 2]);
  shape.push_back(b->shape()[nb - 1]);
  const DType type = compute_type(dtype);
  VariablePtr out = Variable::empty(type, shape, device);
  {
    const Scoped no_grad(context().records_gradients, false);
    const VariablePtr x = as_matrix(a, type), y = as_matrix(b, type);
    if (type == DType::float32) {
      execute({x->operand(), y->operand()}, {out->operand()},
              Product<float>(x->operand(), y->operand(), out->operand()));
    } else {
      execute({x->operand(), y->operand()}, {out->operand()},
              Product<double>(x->operand(), y->operand(), out->operand()));
    }
    out = cast(out, dtype);
  }
  return recorded("matmul", out, {a, b}, [&]() -> Node::Backward {
    const Saved saved_a(a), saved_b(b);
    const bool needs_a = a->requires_grad(), needs_b = b->requires_grad();
    return [=](const VariablePtr& g) -> std::vector<VariablePtr> {
      const VariablePtr &x = saved_a.get(), &y = saved_b.get();
      return {needs_a ? sum_to(product_like(x, g, transpose(y, -1, -2)), x->shape()) : nullptr,
              needs_b ? sum_to(product_like(y, transpose(x, -1, -2), g), y->shape()) : nullptr};
    };
  });
}

}  // namespace

VariablePtr matmul(const VariablePtr& a, const VariablePtr& b) {
  if (a->dim() == 0 || b->dim() == 0) fail(Errc::shape, "matmul: a tensor without dims is no matrix; use *");
  if (a->dtype() != b->dtype()) {
    fail(Errc::dtype, "matmul: expected tensors of one dtype, found {} and {}; cast one with to()",
         name_of(a->dtype()), name_of(b->dtype()));
  }
  const bool is_row = a->dim() == 1, is_column = b->dim() == 1;
  const VariablePtr left = is_row ? unsqueeze(a, 0) : a;
  const VariablePtr right = is_column ? unsqueeze(b, 1) : b;
  // A batch of rows times one matrix is one larger product.
  if (left->dim() > 2 && right->dim() == 2) {
    Shape shape = left->shape();
    const int64_t rows = numel_of(Shape(shape.begin(), shape.end() - 1));
    VariablePtr out = product(reshape(left, {rows, shape.back()}), right);
    shape.back() = right->shape().back();
    out = reshape(out, shape);
    return is_column ? squeeze(out, -1) : out;
  }
  VariablePtr out = product(left, right);
  if (is_column) out = squeeze(out, -1);
  return is_row ? squeeze(out, is_column ? -1 : -2) : out;
}

VariablePtr linear(const VariablePtr& x, const VariablePtr& weight, const VariablePtr& bias) {
  if (weight->dim() != 2)
    fail(Errc::shape, "linear: the weight must have two dims [out, in], not {}", to_string(weight->shape()));
  if (x->dim() == 0 || x->shape().back() != weight->shape()[1]) {
    fail(Errc::shape, "linear: the last extent of x {} must be that of the weight {}", to_string(x->shape()),
         to_string(weight->shape()));
  }
  const VariablePtr y = matmul(x, transpose(weight, 0, 1));
  return bias ? binary(ElementOp::add, y, bias) : y;
}

}  // namespace cbk::compute
