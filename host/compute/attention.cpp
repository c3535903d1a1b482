// Scaled dot-product attention, a block of queries at a time. The scores of a block against all keys are
// computed, used and discarded, in both passes (after Dao et al. 2022 and Rabe and Staats 2021).
#include <algorithm>
#include <cmath>
#include <limits>

#include "host/base/error.hpp"
#include "host/base/parallel.hpp"
#include "host/compute/function_kernel.hpp"
#include "host/compute/gemm.hpp"
#include "host/compute/operators.hpp"
#include "host/compute/promote.hpp"
#include "host/compute/row_math.hpp"
#include "host/compute/strided.hpp"
#include "host/compute/tape.hpp"

namespace cbk::compute {
namespace {

using Operands = std::vector<Operand>;
constexpr int64_t block = 128;  // queries

/// Extents, the same for all heads.
struct Sizes {
  int64_t batch = 1, heads = 1, groups = 1, queries = 0, keys = 0, width = 0, value_width = 0;
  double scale = 1, cap = 0;  // no cap: 0
  double dropout = 0;
  bool causal = false, has_mask = false, adds_mask = false, has_slopes = false;
  int64_t window = 0;  // 0: none
  /// If there are fewer queries than keys, they belong to the last keys (a key cache precedes them).
  [[nodiscard]] int64_t last_key(int64_t query) const {
    return causal ? std::min(keys - 1, query + keys - queries) : keys - 1;
  }
  [[nodiscard]] int64_t first_key(int64_t query) const {
    return window > 0 ? std::max<int64_t>(0, query + keys - queries - window + 1) : 0;
  }
};

template <typename T>
T* scratch(int slot, int64_t size) {
  thread_local std::vector<T> memory[3];
  if (memory[slot].size() < static_cast<size_t>(size)) memory[slot].resize(static_cast<size_t>(size));
  return memory[slot].data();
}

/// The rows of one head of an operand [batch, heads, rows, width].
template <typename T>
Matrix<const T> rows_of_head(const Operand& all, int64_t b, int64_t h) {
  return {all.data<T>() + b * all.strides[0] + h * all.strides[1], all.strides[2], false};
}

template <typename T>
Matrix<const T> turned(Matrix<const T> x) {
  x.is_transposed = !x.is_transposed;
  return x;
}

template <typename T>
void scale_row(T* row, int64_t keys, T factor) {
  static const ElementLoop multiply = find_loop<T>(ElementOp::multiply, 2);
  multiply(row, &factor, nullptr, row, static_cast<size_t>(keys));
}

/// cap·tanh(score / cap) in place, and its derivatives if they are asked for.
template <typename T>
void cap_scores(T* scores, T* derivatives, int64_t count, T cap) {
  static const ElementLoop tanh = find_loop<T>(ElementOp::tanh, 0);
  const auto size = static_cast<size_t>(count);
  scale_row(scores, count, 1 / cap);
  tanh(scores, nullptr, nullptr, scores, size);
  for (int64_t i = 0; derivatives != nullptr && i < count; ++i) derivatives[i] = 1 - scores[i] * scores[i];
  scale_row(scores, count, cap);
}

/// Scores of queries [begin, begin + rows) of one head against keys [0, keys): scaled, capped, with mask and
/// slopes; -inf for unseen keys. `derivatives` may be nullptr, and gets those of the cap.
template <typename T>
void make_scores(const Sizes& s, const Operands& reads, int64_t b, int64_t h, int64_t begin, int64_t rows,
                 int64_t keys, T* scores, T* derivatives) {
  const int64_t group = h / (s.heads / s.groups);
  const Matrix<const T> q = rows_of_head<T>(reads[0], b, h).block(begin, 0);
  const Matrix<const T> k = rows_of_head<T>(reads[1], b, group);
  gemm<T>(q, turned(k), {scores, keys, false}, rows, keys, s.width, static_cast<T>(s.scale));
  if (s.cap > 0) cap_scores(scores, derivatives, rows * keys, static_cast<T>(s.cap));
  const T hidden = -std::numeric_limits<T>::infinity();
  for (int64_t i = 0; i < rows; ++i) {
    T* row = scores + i * keys;
    const int64_t first = std::min(keys, s.first_key(begin + i)),
                  end = std::max(first, std::min(keys, s.last_key(begin + i) + 1));
    std::fill(row, row + first, hidden);
    std::fill(row + end, row + keys, hidden);
    if (s.has_slopes) {
      const T slope = reads[4].data<T>()[h];
      for (int64_t j = first; j < end; ++j)
        row[j] -= slope * static_cast<T>(std::abs(begin + i + s.keys - s.queries - j));
    }
    if (!s.has_mask) continue;
    const Operand& mask = reads[3];
    const int64_t at =
        mask.offset + b * mask.strides[0] + h * mask.strides[1] + (begin + i) * mask.strides[2];
    for (int64_t j = first; j < end; ++j) {
      const int64_t place = at + j * mask.strides[3];
      if (s.adds_mask) {
        row[j] += reinterpret_cast<const T*>(mask.buffer->data())[place];
      } else if (reinterpret_cast<const uint8_t*>(mask.buffer->data())[place] == 0) {
        row[j] = hidden;
      }
    }
  }
}

/// exp(score - most) in place; a row that sees nothing becomes zeros.
template <typename T>
void make_powers(T* row, int64_t keys, T most) {
  static const ElementLoop subtract = find_loop<T>(ElementOp::subtract, 2),
                           exp = find_loop<T>(ElementOp::exp, 0);
  if (std::isinf(most)) return static_cast<void>(std::fill_n(row, keys, T{0}));
  subtract(row, &most, nullptr, row, static_cast<size_t>(keys));
  exp(row, nullptr, nullptr, row, static_cast<size_t>(keys));
}

/// The data about a row of scores that the forward pass keeps, so that the backward pass computes the same
/// weights: exp(score - most)·factor. A single logarithm of their sum would have no digits left beside large
/// scores.
template <typename T>
struct Row {
  T most, factor;
};

template <typename T>
Row<T>* rows_of(const Operand& known) {
  return reinterpret_cast<Row<T>*>(known.data<T>());
}

/// Turns scores into weights with the sum 1.
template <typename T>
Row<T> normalize(T* row, int64_t keys) {
  const T most = row_max(row, keys);
  make_powers(row, keys, most);
  if (std::isinf(most) && most < 0) return {most, 0};
  const T factor = static_cast<T>(1 / row_sum(row, keys));
  scale_row(row, keys, factor);
  return {most, factor};
}

/// Sets the weights to 0 that dropout takes, and multiplies the others by 1 / (1 - p).
template <typename T>
void drop(const Sizes& s, const Operand& kept, int64_t first_query, int64_t rows, int64_t keys, T* weights) {
  const auto factor = static_cast<T>(1 / (1 - s.dropout));
  for (int64_t i = 0; i < rows; ++i) {
    const auto* row =
        reinterpret_cast<const uint8_t*>(kept.buffer->data()) + kept.offset + (first_query + i) * s.keys;
    for (int64_t j = 0; j < keys; ++j) weights[i * keys + j] *= row[j] != 0 ? factor : 0;
  }
}

int64_t keys_of_block(const Sizes& s, int64_t begin, int64_t rows) {
  return std::max<int64_t>(1, s.last_key(begin + rows - 1) + 1);
}

struct Forward {
  Sizes s;
  /// reads: q, k, v, mask, slopes, kept. writes: out, the data of each row.
  template <typename T>
  void run(const Operands& reads, const Operands& writes) const {
    const int64_t blocks = (s.queries + block - 1) / block;
    parallel_for(s.batch * s.heads * blocks, [&](int64_t task) {
      const int64_t begin = task % blocks * block, head = task / blocks, b = head / s.heads,
                    h = head % s.heads;
      const int64_t rows = std::min(block, s.queries - begin), keys = keys_of_block(s, begin, rows);
      T* scores = scratch<T>(0, rows * keys);
      make_scores<T>(s, reads, b, h, begin, rows, keys, scores, nullptr);
      for (int64_t i = 0; i < rows; ++i)
        rows_of<T>(writes[1])[head * s.queries + begin + i] = normalize(scores + i * keys, keys);
      if (s.dropout > 0) drop(s, reads[5], head * s.queries + begin, rows, keys, scores);
      const Matrix<const T> v = rows_of_head<T>(reads[2], b, h / (s.heads / s.groups));
      T* out = writes[0].data<T>() + (head * s.queries + begin) * s.value_width;
      gemm<T>({scores, keys, false}, v, {out, s.value_width, false}, rows, s.value_width, keys);
    });
  }
};

struct Backward {
  Sizes s;
  /// reads: q, k, v, mask, slopes, kept, out, the data of each row, upstream. writes: dq, dk, dv.
  template <typename T>
  void run(const Operands& reads, const Operands& writes) const {
    // A task has all queries that share keys, so that no two tasks write one row.
    parallel_for(s.batch * s.groups, [&](int64_t task) {
      T* dk = writes[1].data<T>() + task * s.keys * s.width;
      T* dv = writes[2].data<T>() + task * s.keys * s.value_width;
      std::fill_n(dk, s.keys * s.width, T{0});
      std::fill_n(dv, s.keys * s.value_width, T{0});
      const int64_t shared = s.heads / s.groups;
      for (int64_t h = task % s.groups * shared; h < (task % s.groups + 1) * shared; ++h) {
        for (int64_t begin = 0; begin < s.queries; begin += block) {
          run_block<T>(reads, writes, task % s.groups, task / s.groups, h, begin, dk, dv);
        }
      }
    });
  }

 private:
  template <typename T>
  void run_block(const Operands& reads, const Operands& writes, int64_t group, int64_t b, int64_t h,
                 int64_t begin, T* dk, T* dv) const {
    const int64_t rows = std::min(block, s.queries - begin), keys = keys_of_block(s, begin, rows);
    const int64_t first = (b * s.heads + h) * s.queries + begin;
    const Matrix<const T> q = rows_of_head<T>(reads[0], b, h).block(begin, 0);
    const Matrix<const T> k = rows_of_head<T>(reads[1], b, group), v = rows_of_head<T>(reads[2], b, group);
    const T* out = reads[6].data<T>() + first * s.value_width;
    const T* g = reads[8].data<T>() + first * s.value_width;
    T* weights = scratch<T>(0, rows * keys);
    T* slopes = scratch<T>(1, rows * keys);
    T* derivatives = s.cap > 0 ? scratch<T>(2, rows * keys) : nullptr;
    make_scores<T>(s, reads, b, h, begin, rows, keys, weights, derivatives);
    for (int64_t i = 0; i < rows; ++i) {
      const Row<T>& known = rows_of<T>(reads[7])[first + i];
      make_powers(weights + i * keys, keys, known.most);
      scale_row(weights + i * keys, keys, known.factor);
    }
    gemm<T>({g, s.value_width, false}, turned(v), {slopes, keys, false}, rows, keys, s.value_width);
    if (s.dropout > 0) drop(s, reads[5], first, rows, keys, slopes);
    for (int64_t i = 0; i < rows; ++i) {
      const T along = static_cast<T>(row_dot(g + i * s.value_width, out + i * s.value_width, s.value_width));
      row_slope(slopes + i * keys, weights + i * keys, slopes + i * keys, along, keys);
    }
    if (s.dropout > 0) drop(s, reads[5], first, rows, keys, weights);
    gemm<T>({weights, keys, true}, {g, s.value_width, false}, {dv, s.value_width, false}, keys, s.value_width,
            rows, 1, true);
    for (int64_t i = 0; derivatives != nullptr && i < rows * keys; ++i) slopes[i] *= derivatives[i];
    const T scale = static_cast<T>(s.scale);
    gemm<T>({slopes, keys, false}, k, {writes[0].data<T>() + first * s.width, s.width, false}, rows, s.width,
            keys, scale);
    gemm<T>({slopes, keys, true}, q, {dk, s.width, false}, keys, s.width, rows, scale, true);
  }
};

/// A tensor whose rows have their elements one after the other; a copy if they have not.
VariablePtr with_whole_rows(const VariablePtr& x) {
  const Operand& view = x->operand();
  const bool has_rows = view.dim() == 4 && view.strides[3] == 1 && view.strides[2] >= view.shape[3];
  return has_rows ? x : contiguous(x);
}

/// The same elements as [batch, heads, rows, width].
Operand as_heads(const VariablePtr& x, int64_t batch, int64_t heads) {
  const Operand& view = x->operand();
  if (view.dim() == 4) return view;
  const size_t dims = view.shape.size();
  Operand out = whole(view.buffer, view.dtype, {batch, heads, view.shape[dims - 2], view.shape[dims - 1]});
  out.offset = view.offset;
  return out;
}

template <typename Body>
void execute_for(DType type, Operands reads, Operands writes, Body body) {
  execute(std::move(reads), std::move(writes), [type, body](const Operands& r, const Operands& w) {
    if (type == DType::float32) {
      body.template run<float>(r, w);
    } else {
      body.template run<double>(r, w);
    }
  });
}

Sizes sizes_of(const VariablePtr& q, const VariablePtr& k, const VariablePtr& v,
               const AttentionOptions& options) {
  const auto extent = [](const VariablePtr& x, int64_t from_end) {
    return x->shape()[x->shape().size() - static_cast<size_t>(from_end)];
  };
  const bool have_dims = q->dim() >= 2 && k->dim() == q->dim() && v->dim() == q->dim();
  const auto fail_shapes = [&](const char* why) {
    fail(Errc::shape, "attention: q {}, k {} and v {}: {}", to_string(q->shape()), to_string(k->shape()),
         to_string(v->shape()), why);
  };
  if (!have_dims) fail_shapes("all need the same number of dims, at least 2");
  Sizes s;
  s.queries = extent(q, 2);
  s.keys = extent(k, 2);
  s.width = extent(q, 1);
  s.value_width = extent(v, 1);
  s.heads = q->dim() > 2 ? extent(q, 3) : 1;
  s.groups = q->dim() > 2 ? extent(k, 3) : 1;
  for (int64_t i = 0; i + 3 < q->dim(); ++i) {
    s.batch *= q->shape()[i];
    if (k->shape()[i] != q->shape()[i] || v->shape()[i] != q->shape()[i])
      fail_shapes("the batch dims must be the same");
  }
  if (extent(k, 1) != s.width || extent(v, 2) != s.keys || (v->dim() > 2 && extent(v, 3) != s.groups)) {
    fail_shapes("q and k need one width, k and v one number of keys and heads");
  }
  if (s.groups == 0 || s.heads % s.groups != 0) fail_shapes("the heads of k and v must divide those of q");
  if (options.window && (!options.causal || *options.window < 1))
    fail(Errc::value, "attention: a window needs causal = true and at least 1, not {}", *options.window);
  if (options.cap && !(*options.cap > 0))
    fail(Errc::value, "attention: a cap must be greater than 0, not {}", *options.cap);
  if (!(options.dropout >= 0 && options.dropout < 1))
    fail(Errc::value, "attention: dropout_p must be in [0, 1), not {}", options.dropout);
  s.cap = options.cap.value_or(0);
  s.dropout = options.dropout;
  s.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(s.width)));
  s.causal = options.causal;
  s.window = options.window.value_or(0);
  s.has_mask = options.mask != nullptr;
  s.has_slopes = options.slopes != nullptr;
  s.adds_mask = s.has_mask && is_floating(options.mask->dtype());
  return s;
}

}  // namespace

VariablePtr attention(const VariablePtr& q, const VariablePtr& k, const VariablePtr& v,
                      const AttentionOptions& options) {
  const Sizes s = sizes_of(q, k, v, options);
  const Device device = common_device({&q, &k, &v, &options.mask, &options.slopes});
  const DType type = compute_type(q->dtype());
  if (!is_floating(q->dtype()))
    fail(Errc::dtype, "attention of {} is not possible: cast it to float32 first", name_of(q->dtype()));
  Shape shape = q->shape();
  shape.back() = s.value_width;
  for (const VariablePtr& given : {options.mask, options.slopes}) {
    if (needs_gradient({given}))
      fail(Errc::refused,
           "attention gives no gradient for its mask and slopes: detach() them, or add a learned bias to "
           "q:matmul(k:transpose(-1, -2)) yourself");
  }
  const bool is_empty = s.keys == 0 || numel_of(shape) == 0;
  VariablePtr out = is_empty ? full(type, shape, 0, device) : Variable::empty(type, shape, device);
  const VariablePtr known = Variable::empty(type, {s.batch * s.heads, s.queries, 2}, device);
  Operands reads;
  std::vector<Saved> saved, unchanged;
  VariablePtr result;
  {
    const Scoped no_grad(context().records_gradients, false);
    for (const VariablePtr& one : {q, k, v}) {
      saved.emplace_back(with_whole_rows(cast(one, type)));
      reads.push_back(as_heads(saved.back().get(), s.batch, one == q ? s.heads : s.groups));
    }
    const VariablePtr nothing = Variable::empty(type, {0}, device);
    for (int i = 0; i < 3; ++i) reads.push_back(nothing->operand());
    if (options.mask) {
      const VariablePtr mask = cast(options.mask, s.adds_mask ? type : DType::boolean);
      unchanged.emplace_back(mask);
      reads[3] = expanded(mask->operand(), {s.batch, s.heads, s.queries, s.keys});
    }
    if (options.slopes) {
      if (options.slopes->shape() != Shape{s.heads})
        fail(Errc::shape, "attention: expected {} slopes, found shape {}", s.heads,
             to_string(options.slopes->shape()));
      const VariablePtr slopes = contiguous(cast(options.slopes, type));
      unchanged.emplace_back(slopes);
      reads[4] = slopes->operand();
    }
    if (s.dropout > 0) {
      const VariablePtr kept = dropout_kept({s.batch, s.heads, s.queries, s.keys}, s.dropout);
      unchanged.emplace_back(kept);
      reads[5] = kept->operand();
    }
    if (!is_empty) execute_for(type, reads, {out->operand(), known->operand()}, Forward{s});
    result = cast(out, q->dtype());
  }
  return recorded("attention", result == out ? out : result->detached(), {q, k, v}, [&]() -> Node::Backward {
    return [=, kept = Saved(out)](const VariablePtr& upstream) -> std::vector<VariablePtr> {
      Operands all = reads;
      for (const Saved& one : saved) one.check();
      for (const Saved& one : unchanged) one.check();
      all.push_back(kept.get()->operand());
      all.push_back(known->operand());
      all.push_back(contiguous(cast(upstream, type))->operand());
      std::vector<VariablePtr> gradients;
      Operands writes;
      for (const Saved& one : saved) {
        const Shape& like = one.get()->shape();
        gradients.push_back(is_empty ? full(type, like, 0, device) : Variable::empty(type, like, device));
        writes.push_back(gradients.back()->operand());
      }
      if (!is_empty) execute_for(type, all, writes, Backward{s});
      for (VariablePtr& gradient : gradients) gradient = cast(gradient, upstream->dtype());
      return gradients;
    };
  });
}

}  // namespace cbk::compute
