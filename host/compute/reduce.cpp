// Sums, means, extremes and norms over dims.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "host/base/error.hpp"
#include "host/base/parallel.hpp"
#include "host/compute/function_kernel.hpp"
#include "host/compute/operators.hpp"
#include "host/compute/promote.hpp"
#include "host/compute/row_math.hpp"
#include "host/compute/strided.hpp"
#include "host/compute/tape.hpp"

namespace cbk::compute {
namespace {

enum class Fold : uint8_t { sum, squares, largest, smallest };

constexpr int64_t folded_together = 16384;  // elements of a long row that are folded together
constexpr int64_t columns_at_once = 512;

/// The reduced dims, in ascending order.
Dims reduced_dims(const Dims& dims, int64_t rank) {
  Dims out;
  for (const int64_t dim : dims) out.push_back(check_dim(dim, rank));
  if (dims.empty()) {
    out.resize(static_cast<size_t>(rank));
    std::iota(out.begin(), out.end(), 0);
  }
  std::sort(out.begin(), out.end());
  if (std::adjacent_find(out.begin(), out.end()) != out.end()) fail(Errc::value, "a dim is given twice");
  return out;
}

Shape kept_shape(const Shape& shape, const Dims& gone, bool keeps) {
  Shape out;
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool goes = std::binary_search(gone.begin(), gone.end(), static_cast<int64_t>(i));
    if (!goes) out.push_back(shape[i]);
    if (goes && keeps) out.push_back(1);
  }
  return out;
}

template <typename T>
double fold_row(Fold fold, const T* x, int64_t count) {
  switch (fold) {
    case Fold::sum:
      return row_sum(x, count);
    case Fold::squares:
      return row_dot(x, x, count);
    case Fold::largest:
      return static_cast<double>(row_max(x, count));
    case Fold::smallest:
      break;
  }
  T out = x[0];
  for (int64_t i = 1; i < count; ++i) out = out <= x[i] || out != out ? out : x[i];
  return static_cast<double>(out);
}

int64_t fold_row(Fold fold, const int64_t* x, int64_t count) {
  int64_t out = fold == Fold::sum || fold == Fold::squares ? 0 : x[0];
  for (int64_t i = 0; i < count; ++i) {
    if (fold == Fold::sum) out += x[i];
    if (fold == Fold::squares) out += x[i] * x[i];
    if (fold == Fold::largest) out = std::max(out, x[i]);
    if (fold == Fold::smallest) out = std::min(out, x[i]);
  }
  return out;
}

template <typename A>
A join(Fold fold, A a, A b) {
  if (fold == Fold::sum || fold == Fold::squares) return a + b;
  if (a != a) return a;
  if (fold == Fold::largest) return a >= b ? a : b;
  return a <= b ? a : b;
}

/// Reduces each of `rows` rows of `count` elements to one.
template <typename T>
class FoldRows {
 public:
  FoldRows(Fold fold, int64_t rows, int64_t count) : fold_(fold), rows_(rows), count_(count) {
    parts_ = std::max<int64_t>(1, (count + folded_together - 1) / folded_together);
    if (parts_ > 1) partial_.resize(static_cast<size_t>(rows * parts_));
  }

  void operator()(const std::vector<Operand>& reads, const std::vector<Operand>& writes) {
    const T* x = reads[0].data<T>();
    T* out = writes[0].data<T>();
    if (count_ == 0) return static_cast<void>(std::fill_n(out, rows_, T{}));
    if (parts_ > 1) return run_long(x, out);
    const int64_t per_task = std::max<int64_t>(1, folded_together / count_);
    parallel_for((rows_ + per_task - 1) / per_task, [&](int64_t task) {
      const int64_t end = std::min(rows_, (task + 1) * per_task);
      for (int64_t row = task * per_task; row < end; ++row)
        out[row] = static_cast<T>(fold_row(fold_, x + row * count_, count_));
    });
  }

 private:
  using Total = std::conditional_t<std::is_same_v<T, int64_t>, int64_t, double>;

  void run_long(const T* x, T* out) {
    parallel_for(rows_ * parts_, [&](int64_t task) {
      const int64_t row = task / parts_, begin = task % parts_ * folded_together;
      partial_[task] = fold_row(fold_, x + row * count_ + begin, std::min(folded_together, count_ - begin));
    });
    for (int64_t row = 0; row < rows_; ++row) {
      Total total = partial_[row * parts_];
      for (int64_t i = 1; i < parts_; ++i) total = join(fold_, total, partial_[row * parts_ + i]);
      out[row] = static_cast<T>(total);
    }
  }

  Fold fold_;
  int64_t rows_, count_, parts_ = 1;
  std::vector<Total> partial_;
};

/// Reduces each of `columns` columns of `count` elements to its sum.
template <typename T>
class SumColumns {
 public:
  SumColumns(int64_t columns, int64_t count) : columns_(columns), count_(count) {}

  void operator()(const std::vector<Operand>& reads, const std::vector<Operand>& writes) {
    const T* x = reads[0].data<T>();
    T* out = writes[0].data<T>();
    parallel_for((columns_ + columns_at_once - 1) / columns_at_once, [&](int64_t task) {
      const int64_t begin = task * columns_at_once;
      const int64_t width = std::min(columns_at_once, columns_ - begin);
      double totals[columns_at_once] = {};
      for (int64_t i = 0; i < count_; ++i) row_collect(totals, x + i * columns_ + begin, width);
      for (int64_t j = 0; j < width; ++j) out[begin + j] = static_cast<T>(totals[j]);
    });
  }

 private:
  int64_t columns_, count_;
};

template <typename T>
void run_fold(Fold fold, const VariablePtr& dense, const VariablePtr& out, int64_t rows, int64_t count,
              bool is_by_column) {
  if constexpr (!std::is_same_v<T, int64_t>) {
    if (is_by_column) return execute({dense->operand()}, {out->operand()}, SumColumns<T>(rows, count));
  }
  execute({dense->operand()}, {out->operand()}, FoldRows<T>(fold, rows, count));
}

/// The dims `gone` of x folded; the result has no gradient yet.
VariablePtr folded(Fold fold, const VariablePtr& x, const Dims& gone, bool keeps) {
  const Scoped no_grad(context().records_gradients, false);
  Dims kept;
  for (int64_t i = 0; i < x->dim(); ++i) {
    if (!std::binary_search(gone.begin(), gone.end(), i)) kept.push_back(i);
  }
  const auto ordered = [&](const Dims& first, const Dims& second) {
    Dims dims = first;
    dims.insert(dims.end(), second.begin(), second.end());
    return permute(x, dims);
  };
  VariablePtr view = ordered(kept, gone);
  const bool is_by_column = fold == Fold::sum && is_floating(x->dtype()) && !kept.empty() &&
                            !view->operand().is_contiguous() &&
                            ordered(gone, kept)->operand().is_contiguous();
  if (is_by_column) view = ordered(gone, kept);
  const DType type = compute_type(x->dtype()) == DType::float32 && x->dtype() == DType::boolean
                         ? DType::int64
                         : compute_type(x->dtype());
  const VariablePtr dense = contiguous(cast(view, type));
  const Shape shape = kept_shape(x->shape(), gone, keeps);
  const int64_t rows = numel_of(shape);
  const int64_t count = rows == 0 ? 0 : x->numel() / rows;
  if (count == 0 && rows > 0 && (fold == Fold::largest || fold == Fold::smallest)) {
    fail(Errc::value, "a tensor of shape {} has no largest element: it is empty", to_string(x->shape()));
  }
  VariablePtr out = Variable::empty(type, shape, x->device());
  if (type == DType::float32) run_fold<float>(fold, dense, out, rows, count, is_by_column);
  if (type == DType::float64) run_fold<double>(fold, dense, out, rows, count, is_by_column);
  if (type == DType::int64) run_fold<int64_t>(fold, dense, out, rows, count, false);
  return is_floating(x->dtype()) ? cast(out, x->dtype()) : out;
}

/// A reduced gradient with its reduced dims restored as extents of one.
VariablePtr with_dims(const VariablePtr& g, const Shape& before, const Dims& gone) {
  return reshape(g, kept_shape(before, gone, true));
}

VariablePtr extreme(Fold fold, const VariablePtr& x, const Dims& dims, bool keeps) {
  const Dims gone = reduced_dims(dims, x->dim());
  VariablePtr y = cast(folded(fold, x, gone, keeps), x->dtype());
  return recorded(fold == Fold::largest ? "amax" : "amin", y, {x}, [&]() -> Node::Backward {
    const Saved saved(x), result(y);
    return [=](const VariablePtr& g) -> std::vector<VariablePtr> {
      // ties share the gradient evenly
      const VariablePtr hits =
          cast(binary(ElementOp::equal, saved.get(), with_dims(result.get(), saved.get()->shape(), gone)),
               g->dtype());
      const VariablePtr count = sum(hits, gone, true);
      return {binary(ElementOp::multiply, hits,
                     binary(ElementOp::divide, with_dims(g, saved.get()->shape(), gone), count))};
    };
  });
}

/// Whether sums over x are taken in float32: the range of float16 ends at 65504, and squares of 2^-13 are 0.
bool is_half(const VariablePtr& x) {
  return x->dtype() == DType::float16 || x->dtype() == DType::bfloat16;
}

/// Positions in each row of the last dimension.
template <typename T>
void find_largest(const VariablePtr& dense, const VariablePtr& out, int64_t rows, int64_t count) {
  execute({dense->operand()}, {out->operand()},
          [=](const std::vector<Operand>& reads, const std::vector<Operand>& writes) {
            const T* x = reads[0].data<T>();
            auto* to = writes[0].data<int64_t>();
            for (int64_t row = 0; row < rows; ++row) {
              int64_t best = 0;
              const T* values = x + row * count;
              for (int64_t i = 1; i < count && values[best] == values[best]; ++i) {
                if (values[i] > values[best] || values[i] != values[i]) best = i;
              }
              to[row] = best;
            }
          });
}

/// The k largest of each row of the last dimension, the largest first.
template <typename T>
void find_several(const VariablePtr& dense, const VariablePtr& values, const VariablePtr& places,
                  int64_t count, int64_t k) {
  execute({dense->operand()}, {values->operand(), places->operand()},
          [count, k](const std::vector<Operand>& reads, const std::vector<Operand>& writes) {
            std::vector<int64_t> order(static_cast<size_t>(count));
            for (int64_t row = 0; row < reads[0].numel() / count; ++row) {
              const T* from = reads[0].data<T>() + row * count;
              std::iota(order.begin(), order.end(), 0);
              std::partial_sort(order.begin(), order.begin() + k, order.end(), [from](int64_t a, int64_t b) {
                const T one = from[a], other = from[b];
                if (one != one || other != other)  // NaN is the largest, as in PyTorch
                  return one != one && (other == other || a < b);
                return one > other || (one == other && a < b);
              });
              for (int64_t i = 0; i < k; ++i) {
                writes[0].data<T>()[row * k + i] = from[order[i]];
                writes[1].data<int64_t>()[row * k + i] = order[i];
              }
            }
          });
}

}  // namespace

VariablePtr sum(const VariablePtr& x, const Dims& dims, bool keeps) {
  const Dims gone = reduced_dims(dims, x->dim());
  return recorded("sum", folded(Fold::sum, x, gone, keeps), {x}, [&]() -> Node::Backward {
    return [gone, before = x->shape()](const VariablePtr& g) -> std::vector<VariablePtr> {
      return {expand(with_dims(g, before, gone), before)};
    };
  });
}

VariablePtr mean(const VariablePtr& x, const Dims& dims, bool keeps) {
  if (!is_floating(x->dtype()))
    fail(Errc::dtype, "mean of {} is not possible: cast it to float32 first", name_of(x->dtype()));
  if (is_half(x)) return cast(mean(cast(x, DType::float32), dims, keeps), x->dtype());
  int64_t count = 1;
  for (const int64_t dim : reduced_dims(dims, x->dim())) count *= x->shape()[dim];
  return binary(ElementOp::divide, sum(x, dims, keeps), static_cast<double>(count));
}

VariablePtr amax(const VariablePtr& x, const Dims& dims, bool keeps) {
  return extreme(Fold::largest, x, dims, keeps);
}
VariablePtr amin(const VariablePtr& x, const Dims& dims, bool keeps) {
  return extreme(Fold::smallest, x, dims, keeps);
}

VariablePtr norm(const VariablePtr& x, const Dims& dims, bool keeps) {
  if (is_half(x)) return cast(norm(cast(x, DType::float32), dims, keeps), x->dtype());
  const Dims gone = reduced_dims(dims, x->dim());
  VariablePtr y;
  {
    const Scoped no_grad(context().records_gradients, false);
    y = unary(ElementOp::sqrt, folded(Fold::squares, x, gone, keeps));
  }
  return recorded("norm", y, {x}, [&]() -> Node::Backward {
    const Saved saved(x), result(y);
    return [=](const VariablePtr& g) -> std::vector<VariablePtr> {
      // x / norm, and 0 where the norm is 0
      const VariablePtr& length = result.get();
      const VariablePtr scale =
          where(binary(ElementOp::equal, length, 0.0), 0.0, binary(ElementOp::divide, g, length));
      return {binary(ElementOp::multiply, saved.get(), with_dims(scale, saved.get()->shape(), gone))};
    };
  });
}

VariablePtr argmax(const VariablePtr& x, std::optional<int64_t> dim, bool keeps) {
  const Scoped no_grad(context().records_gradients, false);
  const VariablePtr source = dim ? x : reshape(x, {x->numel()});
  const int64_t at = check_dim(dim.value_or(0), std::max<int64_t>(1, source->dim()));
  if (source->dim() > 0 && source->shape()[at] == 0)
    fail(Errc::value, "a tensor of shape {} has no largest element: it is empty", to_string(x->shape()));
  const VariablePtr rows_of = source->dim() == 0 ? reshape(source, {1}) : source;
  const DType type = compute_type(x->dtype());
  const VariablePtr dense = contiguous(cast(transpose(rows_of, at, -1), type));
  const int64_t count = dense->shape().back();
  Shape shape = dense->shape();
  shape.back() = 1;
  const VariablePtr out = Variable::empty(DType::int64, shape, x->device());
  const int64_t rows = dense->numel() / count;
  if (type == DType::float32) find_largest<float>(dense, out, rows, count);
  if (type == DType::float64) find_largest<double>(dense, out, rows, count);
  if (type == DType::int64) find_largest<int64_t>(dense, out, rows, count);
  const VariablePtr y = contiguous(transpose(out, at, -1));
  if (!dim) return reshape(y, {});
  return keeps || x->dim() == 0 ? reshape(y, kept_shape(x->shape(), {at}, true)) : squeeze(y, at);
}

std::pair<VariablePtr, VariablePtr> topk(const VariablePtr& x, int64_t k) {
  if (x->dim() == 0 || k < 1 || k > x->shape().back()) {
    fail(Errc::value, "topk: k must be from 1 to the last extent of shape {}, not {}", to_string(x->shape()),
         k);
  }
  const Scoped no_grad(context().records_gradients, false);
  const DType type = is_floating(x->dtype()) ? DType::float64 : DType::int64;
  const VariablePtr dense = contiguous(cast(x, type));
  Shape shape = x->shape();
  const int64_t count = shape.back();
  shape.back() = k;
  const VariablePtr values = Variable::empty(type, shape, x->device());
  const VariablePtr places = Variable::empty(DType::int64, shape, x->device());
  if (type == DType::float64) find_several<double>(dense, values, places, count, k);
  if (type == DType::int64) find_several<int64_t>(dense, values, places, count, k);
  return {cast(values, x->dtype()), places};
}

}  // namespace cbk::compute
