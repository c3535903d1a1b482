// Operators over the rows of the last dims: softmax, norms, cross-entropy.
#include <algorithm>
#include <cmath>

#include "host/base/error.hpp"
#include "host/base/parallel.hpp"
#include "host/compute/function_kernel.hpp"
#include "host/compute/operators.hpp"
#include "host/compute/promote.hpp"
#include "host/compute/row_math.hpp"
#include "host/compute/tape.hpp"

namespace cbk::compute {
namespace {

using Operands = std::vector<Operand>;

constexpr int64_t elements_per_task = 16384;
constexpr int64_t rows_per_part = 128;  // whose gradients of a weight are added up together

/// Calls `work(row)` for all rows, in tasks of a fixed size.
template <typename Work>
void for_rows(int64_t rows, int64_t width, Work work) {
  const int64_t per_task = std::max<int64_t>(1, elements_per_task / std::max<int64_t>(1, width));
  parallel_for((rows + per_task - 1) / per_task, [&](int64_t task) {
    const int64_t end = std::min(rows, (task + 1) * per_task);
    for (int64_t row = task * per_task; row < end; ++row) work(row);
  });
}

/// Runs `body.operator()<T>(reads, writes)` for the type of the arithmetic.
template <typename Body>
void execute_typed(DType type, Operands reads, Operands writes, Body body) {
  execute(std::move(reads), std::move(writes), [type, body](const Operands& r, const Operands& w) mutable {
    if (type == DType::float32) {
      body.template operator()<float>(r, w);
    } else {
      body.template operator()<double>(r, w);
    }
  });
}

template <typename T>
struct Loops {
  ElementLoop exp = find_loop<T>(ElementOp::exp, 0);
  ElementLoop subtract = find_loop<T>(ElementOp::subtract, 2);
  ElementLoop multiply = find_loop<T>(ElementOp::multiply, 2);
};

VariablePtr dense_in(const VariablePtr& x, DType type) {
  return contiguous(cast(x, type));
}

void check_float(const char* name, const VariablePtr& x) {
  if (!is_floating(x->dtype()))
    fail(Errc::dtype, "{} of {} is not possible: cast it to float32 first", name, name_of(x->dtype()));
}

// --- softmax

template <typename T>
void softmax_row(const T* x, T* y, int64_t width, bool is_log) {
  static const Loops<T> loops;
  const auto count = static_cast<size_t>(width);
  const T most = row_max(x, width);
  const T shift = std::isinf(most) && most < 0 ? T{0} : most;
  loops.subtract(x, &shift, nullptr, y, count);
  if (!is_log) {
    loops.exp(y, nullptr, nullptr, y, count);
    const T factor = static_cast<T>(1 / row_sum(y, width));
    loops.multiply(y, &factor, nullptr, y, count);
    return;
  }
  thread_local std::vector<T> powers;
  powers.resize(count);
  loops.exp(y, nullptr, nullptr, powers.data(), count);
  const T log_sum = static_cast<T>(std::log(row_sum(powers.data(), width)));
  loops.subtract(y, &log_sum, nullptr, y, count);
}

template <typename T>
void softmax_gradient_row(const T* y, const T* g, T* out, int64_t width, bool is_log) {
  if (is_log) {
    const auto total = static_cast<T>(row_sum(g, width));
    static const Loops<T> loops;
    loops.exp(y, nullptr, nullptr, out, static_cast<size_t>(width));
    for (int64_t i = 0; i < width; ++i) out[i] = g[i] - out[i] * total;
  } else {
    const auto total = static_cast<T>(row_dot(g, y, width));
    row_slope(out, y, g, total, width);
  }
}

struct Softmax {
  bool is_log;
  template <typename T>
  void operator()(const Operands& reads, const Operands& writes) const {
    const int64_t width = reads[0].shape.back();
    for_rows(reads[0].numel() / width, width, [&](int64_t row) {
      softmax_row(reads[0].data<T>() + row * width, writes[0].data<T>() + row * width, width, is_log);
    });
  }
};

struct SoftmaxGradient {
  bool is_log;
  template <typename T>
  void operator()(const Operands& reads, const Operands& writes) const {
    const int64_t width = reads[0].shape.back();
    for_rows(reads[0].numel() / width, width, [&](int64_t row) {
      softmax_gradient_row(reads[0].data<T>() + row * width, reads[1].data<T>() + row * width,
                           writes[0].data<T>() + row * width, width, is_log);
    });
  }
};

VariablePtr softmax_rows(const VariablePtr& x, bool is_log) {
  const DType type = compute_type(x->dtype());
  const VariablePtr dense = dense_in(x, type);
  VariablePtr y = Variable::empty(type, x->shape(), x->device());
  if (y->numel() > 0) execute_typed(type, {dense->operand()}, {y->operand()}, Softmax{is_log});
  y = cast(y, x->dtype());
  return recorded(is_log ? "log_softmax" : "softmax", y, {x}, [&]() -> Node::Backward {
    const Saved saved(y);
    return [=](const VariablePtr& g) -> std::vector<VariablePtr> {
      const VariablePtr out = Variable::empty(type, g->shape(), g->device());
      if (out->numel() > 0) {
        execute_typed(type, {dense_in(saved.get(), type)->operand(), dense_in(g, type)->operand()},
                      {out->operand()}, SoftmaxGradient{is_log});
      }
      return {cast(out, g->dtype())};
    };
  });
}

// --- norms. y = (x - mean)·scale·weight + bias, with scale = 1/√(variance + eps); rms_norm has no mean and
// no bias.

struct Norm {
  double eps;
  bool has_mean, has_bias;
  template <typename T>
  void operator()(const Operands& reads, const Operands& writes) const {
    const int64_t width = numel_of(reads[1].shape);
    const T* weight = reads[1].data<T>();
    const T* bias = has_bias ? reads[2].data<T>() : nullptr;
    for_rows(reads[0].numel() / width, width, [&](int64_t row) {
      const T* x = reads[0].data<T>() + row * width;
      T* y = writes[0].data<T>() + row * width;
      const double mean = has_mean ? row_sum(x, width) / static_cast<double>(width) : 0;
      const T shift = static_cast<T>(mean);
      row_shift(y, x, shift, width);
      const double variance = row_dot(y, y, width) / static_cast<double>(width);
      const T scale = static_cast<T>(1 / std::sqrt(variance + eps));
      writes[1].data<T>()[row] = shift;
      writes[2].data<T>()[row] = scale;
      row_scale(y, weight, bias, scale, width);
    });
  }
};

/// With n = (x - mean)·scale and h = g·weight: dx = scale·(h - mean(h) - n·mean(h·n)), without mean(h) for
/// rms_norm.
struct NormGradient {
  bool has_mean;
  template <typename T>
  void operator()(const Operands& reads, const Operands& writes) const {
    const int64_t width = numel_of(reads[1].shape);
    const T* weight = reads[1].data<T>();
    for_rows(reads[0].numel() / width, width, [&](int64_t row) {
      const T* x = reads[0].data<T>() + row * width;
      const T* g = reads[2].data<T>() + row * width;
      T* out = writes[0].data<T>() + row * width;
      const T shift = reads[3].data<T>()[row], scale = reads[4].data<T>()[row];
      thread_local std::vector<T> scratch;
      scratch.resize(static_cast<size_t>(width) * 2);
      T *n = scratch.data(), *h = scratch.data() + width;
      for (int64_t i = 0; i < width; ++i) {
        n[i] = (x[i] - shift) * scale;
        h[i] = g[i] * weight[i];
      }
      const T mean = has_mean ? static_cast<T>(row_sum(h, width) / static_cast<double>(width)) : T{0};
      const T along = static_cast<T>(row_dot(h, n, width) / static_cast<double>(width));
      for (int64_t i = 0; i < width; ++i) out[i] = scale * (h[i] - mean - n[i] * along);
    });
  }
};

/// dweight = Σ g·n and dbias = Σ g over the rows, part by part.
struct NormWeightGradient {
  template <typename T>
  void operator()(const Operands& reads, const Operands& writes) {
    const int64_t width = reads[0].shape.back(), rows = width == 0 ? 0 : reads[0].numel() / width;
    const int64_t parts = (rows + rows_per_part - 1) / rows_per_part;
    partial_.assign(static_cast<size_t>(parts * width * 2), 0);
    parallel_for(parts, [&](int64_t part) {
      double* weight = partial_.data() + part * width * 2;
      double* bias = weight + width;
      for (int64_t row = part * rows_per_part; row < std::min(rows, (part + 1) * rows_per_part); ++row) {
        const T* x = reads[0].data<T>() + row * width;
        const T* g = reads[1].data<T>() + row * width;
        const T shift = reads[2].data<T>()[row], scale = reads[3].data<T>()[row];
        row_collect(weight, g, x, shift, scale, width);
        row_collect(bias, g, width);
      }
    });
    for (int64_t i = 0; i < width * 2; ++i) {
      double total = 0;
      for (int64_t part = 0; part < parts; ++part) total += partial_[part * width * 2 + i];
      (i < width ? writes[0].data<T>()[i] : writes[1].data<T>()[i - width]) = static_cast<T>(total);
    }
  }

 private:
  std::vector<double> partial_;
};

VariablePtr norm_of(const char* name, const VariablePtr& x, const VariablePtr& weight,
                    const VariablePtr& bias, double eps, bool has_mean) {
  check_float(name, x);
  const Shape& own = weight->shape();
  const bool fits = own.size() <= x->shape().size() && !own.empty() &&
                    std::equal(own.rbegin(), own.rend(), x->shape().rbegin());
  if (!fits || (bias && bias->shape() != own)) {
    fail(Errc::shape, "{}: the weight {} must have the last extents of x {}, and the bias as well", name,
         to_string(own), to_string(x->shape()));
  }
  const Device device = common_device({&x, &weight, &bias});
  const DType type = compute_type(x->dtype());
  VariablePtr y = Variable::empty(type, x->shape(), device);
  const int64_t rows = weight->numel() == 0 ? 0 : x->numel() / weight->numel();
  const VariablePtr shifts = Variable::empty(type, {rows}, device),
                    scales = Variable::empty(type, {rows}, device);
  VariablePtr dense, factors;
  {
    const Scoped no_grad(context().records_gradients, false);
    dense = dense_in(x, type);
    factors = dense_in(weight, type);
    Operands reads = {dense->operand(), factors->operand()};
    if (bias) reads.push_back(dense_in(bias, type)->operand());
    if (rows > 0)
      execute_typed(type, reads, {y->operand(), shifts->operand(), scales->operand()},
                    Norm{eps, has_mean, bias != nullptr});
    y = cast(y, x->dtype());
  }
  return recorded(name, y, {x, weight, bias}, [&]() -> Node::Backward {
    const Saved saved_x(dense), saved_weight(factors);
    const bool needs_x = x->requires_grad(),
               needs_weight = weight->requires_grad() || (bias && bias->requires_grad());
    return [=, has_bias = bias != nullptr,
            dtype = weight->dtype()](const VariablePtr& upstream) -> std::vector<VariablePtr> {
      const VariablePtr g = dense_in(upstream, type);
      VariablePtr dx, dweight, dbias;
      if (needs_x) {
        dx = Variable::empty(type, g->shape(), g->device());
        const Operands reads = {saved_x.get()->operand(), saved_weight.get()->operand(), g->operand(),
                                shifts->operand(), scales->operand()};
        if (rows > 0) execute_typed(type, reads, {dx->operand()}, NormGradient{has_mean});
        dx = cast(dx, upstream->dtype());
      }
      if (needs_weight) {
        dweight = Variable::empty(type, saved_weight.get()->shape(), g->device());
        dbias = Variable::empty(type, saved_weight.get()->shape(), g->device());
        const Shape table = {rows, saved_weight.get()->numel()};
        const Operands reads = {reshape(saved_x.get(), table)->operand(), reshape(g, table)->operand(),
                                shifts->operand(), scales->operand()};
        execute_typed(type, reads, {dweight->operand(), dbias->operand()}, NormWeightGradient{});
        dweight = cast(dweight, dtype);
        dbias = has_bias ? cast(dbias, dtype) : nullptr;
      }
      return {dx, dweight, dbias};
    };
  });
}

// --- cross-entropy: log Σ exp(x) - x[label], over the rows whose label is not ignored

struct CrossEntropy {
  Reduction reduction;
  int64_t ignored;
  std::vector<double> losses = {};  // scratch
  /// reads: logits, labels. writes: result, the largest logit of each row and 1 / Σ exp(x - it), number of
  /// rows that count.
  template <typename T>
  void operator()(const Operands& reads, const Operands& writes) {
    const int64_t width = reads[0].shape.back(), rows = reads[1].numel();
    const auto* labels = reads[1].data<int64_t>();
    losses.assign(static_cast<size_t>(rows), 0);
    for_rows(rows, width, [&](int64_t row) {
      const T* x = reads[0].data<T>() + row * width;
      if (labels[row] != ignored && (labels[row] < 0 || labels[row] >= width)) {
        fail(Errc::value, "cross_entropy: label {} of row {} is not in [0, {}), the classes", labels[row],
             row, width);
      }
      static const Loops<T> loops;
      thread_local std::vector<T> powers;
      powers.resize(static_cast<size_t>(width));
      const T most = row_max(x, width);
      loops.subtract(x, &most, nullptr, powers.data(), static_cast<size_t>(width));
      loops.exp(powers.data(), nullptr, nullptr, powers.data(), static_cast<size_t>(width));
      const double sum = row_sum(powers.data(), width);
      writes[1].data<T>()[row * 2] = most;
      writes[1].data<T>()[row * 2 + 1] = static_cast<T>(1 / sum);
      if (labels[row] != ignored)
        losses[row] = std::log(sum) + (static_cast<double>(most) - static_cast<double>(x[labels[row]]));
    });
    const auto counted = rows - std::count(labels, labels + rows, ignored);
    writes[2].data<T>()[0] = static_cast<T>(counted);
    T* out = writes[0].data<T>();
    if (reduction == Reduction::none) {
      std::transform(losses.begin(), losses.end(), out, [](double loss) { return static_cast<T>(loss); });
      return;
    }
    const double total = row_sum(losses.data(), rows);
    out[0] = static_cast<T>(reduction == Reduction::sum ? total : total / static_cast<double>(counted));
  }
};

struct CrossEntropyGradient {
  Reduction reduction;
  int64_t ignored;
  /// reads: logits, labels, the data of each row from the forward pass, count, upstream.
  template <typename T>
  void operator()(const Operands& reads, const Operands& writes) const {
    const int64_t width = reads[0].shape.back(), rows = reads[1].numel();
    const auto* labels = reads[1].data<int64_t>();
    const T* upstream = reads[4].data<T>();
    for_rows(rows, width, [&](int64_t row) {
      static const Loops<T> loops;
      T* out = writes[0].data<T>() + row * width;
      if (labels[row] == ignored) return static_cast<void>(std::fill_n(out, width, T{0}));
      // not exp(x - log Σ exp(x)): for large logits that logarithm has no digits left
      const T* known = reads[2].data<T>() + row * 2;
      T factor = upstream[reduction == Reduction::none ? row : 0];
      if (reduction == Reduction::mean) factor /= reads[3].data<T>()[0];
      const auto count = static_cast<size_t>(width);
      const T share = known[1] * factor;
      loops.subtract(reads[0].data<T>() + row * width, known, nullptr, out, count);
      loops.exp(out, nullptr, nullptr, out, count);
      loops.multiply(out, &share, nullptr, out, count);
      out[labels[row]] -= factor;
    });
  }
};

}  // namespace

VariablePtr softmax(const VariablePtr& x, int64_t dim, bool is_log) {
  check_float(is_log ? "log_softmax" : "softmax", x);
  if (x->dim() == 0) return reshape(softmax(reshape(x, {1}), 0, is_log), {});
  dim = check_dim(dim, x->dim());
  if (dim == x->dim() - 1) return softmax_rows(x, is_log);
  return transpose(softmax_rows(transpose(x, dim, -1), is_log), dim, -1);
}

VariablePtr layer_norm(const VariablePtr& x, const VariablePtr& weight, const VariablePtr& bias, double eps) {
  return norm_of("layer_norm", x, weight, bias, eps, true);
}

VariablePtr rms_norm(const VariablePtr& x, const VariablePtr& weight, double eps) {
  return norm_of("rms_norm", x, weight, nullptr, eps, false);
}

VariablePtr cross_entropy(const VariablePtr& logits, const VariablePtr& labels, Reduction reduction,
                          int64_t ignored) {
  check_float("cross_entropy", logits);
  if (is_floating(labels->dtype())) {
    fail(Errc::dtype, "cross_entropy: labels must be whole numbers, not {}: say {{ dtype = \"int64\" }}",
         name_of(labels->dtype()));
  }
  Shape rows = logits->shape();
  if (!rows.empty()) rows.pop_back();
  if (logits->dim() == 0 || rows != labels->shape()) {
    fail(Errc::shape,
         "cross_entropy: logits {} need labels of shape {}, not {}; the classes are the last dim",
         to_string(logits->shape()), to_string(rows), to_string(labels->shape()));
  }
  if (logits->shape().back() == 0 && labels->numel() > 0)
    fail(Errc::shape, "cross_entropy: logits {} have no classes", to_string(logits->shape()));
  const Device device = common_device({&logits, &labels});
  const DType type = compute_type(logits->dtype());
  VariablePtr out = Variable::empty(type, reduction == Reduction::none ? rows : Shape{}, device);
  const VariablePtr known = Variable::empty(type, {labels->numel(), 2}, device),
                    counted = Variable::empty(type, {}, device);
  VariablePtr dense, places;
  {
    const Scoped no_grad(context().records_gradients, false);
    dense = dense_in(logits, type);
    places = dense_in(labels, DType::int64);
    execute_typed(type, {dense->operand(), places->operand()},
                  {out->operand(), known->operand(), counted->operand()}, CrossEntropy{reduction, ignored});
    out = cast(out, logits->dtype());
  }
  return recorded("cross_entropy", out, {logits}, [&]() -> Node::Backward {
    const Saved saved(dense), saved_labels(places);
    return [=, dtype = logits->dtype()](const VariablePtr& g) -> std::vector<VariablePtr> {
      const VariablePtr dx = Variable::empty(type, saved.get()->shape(), g->device());
      execute_typed(type,
                    {saved.get()->operand(), saved_labels.get()->operand(), known->operand(),
                     counted->operand(), dense_in(g, type)->operand()},
                    {dx->operand()}, CrossEntropyGradient{reduction, ignored});
      return {cast(dx, dtype)};
    };
  });
}

}  // namespace cbk::compute
