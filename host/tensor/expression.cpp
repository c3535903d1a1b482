#include "host/tensor/expression.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "host/base/interrupt.hpp"
#include "host/base/scratch.hpp"
#include "host/tensor/kernels/cast.hpp"
#include "host/tensor/kernels/elementwise.hpp"
#include "host/tensor/kernels/finite.hpp"
#include "host/tensor/kernels/matmul.hpp"
#include "host/tensor/kernels/strided_copy.hpp"
#include "host/tensor/unpack.hpp"

namespace cbk {
namespace {

/// Elements computed at a time by cheap kernels: small enough for the second-level cache.
constexpr int64_t kernel_chunk = 64LL * 1024;

/// Longer runs are read one by one, each directly to its place.
constexpr int64_t long_run = 16LL * 1024;

/// Bytes of runs that cost more to read one by one than together with what is between them.
constexpr int64_t short_run = 1024;

int64_t count_in(std::span<const std::byte> out, uint32_t itemsize) {
  return static_cast<int64_t>(out.size() / itemsize);
}

/// Loops without extent 1 and with neighbours merged that follow each other in memory. A view without
/// elements has none: its extents and strides may be anything.
std::vector<Loop> merged_loops(const Shape& dims, const Shape& strides) {
  std::vector<Loop> loops;
  if (numel_of(dims) == 0) return loops;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 1) continue;
    int64_t reach = 0;
    const bool overflows = __builtin_mul_overflow(dims[i], strides[i], &reach);
    if (!loops.empty() && !overflows && loops.back().stride == reach) {
      loops.back() = {loops.back().extent * dims[i], strides[i]};
    } else {
      loops.push_back({dims[i], strides[i]});
    }
  }
  return loops;
}

/// Blocks of a transposed matrix are best cut at whole rows, some at a time, so that source cache lines are
/// used once.
int64_t row_granularity(std::span<const Loop> loops, uint32_t itemsize) {
  constexpr int64_t longest_row = int64_t{1} << 40;  // elements; a repeated element makes longer ones
  int64_t inner = 1;
  while (!loops.empty() && loops.back().stride == 0 && inner <= longest_row) {
    inner *= loops.back().extent;
    loops = loops.first(loops.size() - 1);
  }
  if (inner > longest_row || loops.size() < 2 || loops.back().stride == 1) return 1;
  for (size_t i = loops.size(); i-- > 1;) {
    inner *= loops[i].extent;
    if (inner > longest_row) return 1;
    if (loops[i - 1].stride == 1) return inner * std::max<int64_t>(1, 64 / static_cast<int64_t>(itemsize));
  }
  return 1;
}

/// Elements that inputs compute at once: of those that prefer whole rows, more rows for less work.
int64_t chunk_of(int64_t granularity) {
  if (granularity <= 1) return kernel_chunk;
  return std::max(granularity, 2 * kernel_chunk / granularity * granularity);
}

/// The losses of `body(begin, count, position)` over the range in chunks of whole rows.
template <typename Body>
Losses for_each_chunk(int64_t begin, int64_t count, int64_t granularity, Body&& body) {
  Losses lost;
  const int64_t chunk = chunk_of(granularity);
  for (int64_t done = 0; done < count;) {
    const int64_t first = begin + done;
    const int64_t length = std::min((first / chunk + 1) * chunk - first, count - done);
    lost += body(first, length, done);
    done += length;
  }
  return lost;
}

}  // namespace

// --- views

ViewExpression::ViewExpression(View view)
    : Expression(view.dtype, numel_of(view.shape)),
      view_(std::move(view)),
      loops_(merged_loops(view_.shape, view_.strides)) {
  if (loops_.size() == 1 && loops_[0].stride == 1) loops_ = {};
}

bool ViewExpression::has_long_runs() const {
  return !loops_.empty() && loops_.back().stride == 1 && loops_.back().extent * itemsize() >= long_run;
}

bool ViewExpression::is_whole() const {
  return static_cast<uint64_t>(numel()) * itemsize() >= view_.storage->size();
}

Losses ViewExpression::read(int64_t begin, std::span<std::byte> out) const {
  check_interrupt();
  const uint32_t item = itemsize();
  if (is_dense()) {
    view_.storage->read(static_cast<uint64_t>(view_.offset + begin) * item, out);
    return {};
  }
  const ByteView bytes = view_.storage->view();
  const bool long_runs = has_long_runs();
  const RunReader read_run = [&](int64_t first, std::span<std::byte> run) {
    view_.storage->read(static_cast<uint64_t>(first) * item, run);
  };
  std::byte* target = out.data();
  for_each_box(view_.offset, loops_, begin, begin + count_in(out, item),
               [&](int64_t offset, std::span<const Loop> loops, int64_t count) {
                 if (long_runs) {
                   read_runs(read_run, offset, loops, item, target);
                 } else if (!bytes.empty()) {
                   copy_box(bytes.data(), offset, loops, item, target);
                 } else {
                   copy_box(read_run, offset, loops, item, target);
                 }
                 target += static_cast<size_t>(count) * item;
               });
  return {};
}

int64_t ViewExpression::granularity() const {
  return row_granularity(loops_, itemsize());
}

bool ViewExpression::drop(int64_t begin, int64_t end) const noexcept {
  if (!is_dense()) return false;
  view_.storage->drop(static_cast<uint64_t>(view_.offset + begin) * itemsize(),
                      static_cast<uint64_t>(end - begin) * itemsize());
  return true;
}

void ViewExpression::drop_all() const noexcept {
  if (numel() == 0) return;
  int64_t last = is_dense() ? numel() - 1 : 0;
  for (const Loop& loop : loops_) last += (loop.extent - 1) * loop.stride;
  view_.storage->drop(static_cast<uint64_t>(view_.offset) * itemsize(),
                      static_cast<uint64_t>(last + 1) * itemsize());
}

StridedExpression::StridedExpression(ExpressionPtr input, int64_t offset, const Shape& dims,
                                     const Shape& strides)
    : Expression(input->dtype(), numel_of(dims)),
      input_(std::move(input)),
      offset_(offset),
      loops_(merged_loops(dims, strides)) {}

bool StridedExpression::has_gaps() const {
  return std::any_of(loops_.begin(), loops_.end(), [](const Loop& loop) { return is_thinned(loop); });
}

Losses StridedExpression::read(int64_t begin, std::span<std::byte> out) const {
  Losses lost;
  const int64_t end = begin + count_in(out, itemsize());
  const RunReader read_run = [&](int64_t first, std::span<std::byte> run) {
    lost += input_->read(first, run);
  };
  std::byte* target = out.data();
  for_each_box(offset_, loops_, begin, end, [&](int64_t offset, std::span<const Loop> loops, int64_t count) {
    copy_box(read_run, offset, loops, itemsize(), target);
    target += static_cast<size_t>(count) * itemsize();
  });
  if (!lost.any() || !has_gaps()) return lost;
  lost = {};  // counted in the gaps, too: now element by element
  for (int64_t i = begin; i < end; ++i) {
    const auto element = out.subspan(static_cast<size_t>(i - begin) * itemsize(), itemsize());
    for_each_box(offset_, loops_, i, i + 1,
                 [&](int64_t offset, std::span<const Loop> /*loops*/, int64_t /*count*/) {
                   lost += input_->read(offset, element);
                 });
  }
  return lost;
}

int64_t StridedExpression::granularity() const {
  return row_granularity(loops_, itemsize());
}

// --- composition

ConcatExpression::ConcatExpression(std::vector<Tensor> parts, size_t dim)
    : Expression(parts.at(0).dtype(),
                 [&] {
                   int64_t total = 0;
                   for (const Tensor& part : parts) total += part.numel();
                   return total;
                 }()),
      parts_(std::move(parts)),
      dim_(dim) {
  for (const Tensor& part : parts_) {
    int64_t width = 1;
    for (size_t i = dim; i < part.shape().size(); ++i) width *= part.shape()[i];
    widths_.push_back(width);
    row_ += width;
  }
}

template <typename Piece>
void ConcatExpression::each_piece(int64_t begin, int64_t end, Piece&& piece) const {
  int64_t position = begin;
  while (position < end) {
    const int64_t row = position / row_;
    int64_t column = position % row_;
    for (size_t part = 0; part < parts_.size() && position < end; ++part) {
      if (column >= widths_[part]) {
        column -= widths_[part];
        continue;
      }
      const int64_t count = std::min(widths_[part] - column, end - position);
      piece(part, row * widths_[part] + column, count, position - begin);
      position += count;
      column = 0;
    }
  }
}

Losses ConcatExpression::read(int64_t begin, std::span<std::byte> out) const {
  Losses lost;
  const uint32_t item = itemsize();
  const int64_t count = count_in(out, item);
  const bool whole_rows = begin % row_ == 0 && count % row_ == 0 && count > row_;
  if (!whole_rows) {
    each_piece(begin, begin + count, [&](size_t part, int64_t first, int64_t length, int64_t position) {
      lost += parts_[part].expression()->read(
          first, out.subspan(static_cast<size_t>(position) * item, static_cast<size_t>(length) * item));
    });
    return lost;
  }
  // Several rows at once: each part computes its rows in one go (a transposed part would hate single rows).
  const int64_t first_row = begin / row_;
  const int64_t rows = count / row_;
  int64_t column = 0;
  for (size_t part = 0; part < parts_.size(); ++part) {
    const int64_t width = widths_[part];
    Scratch scratch(static_cast<size_t>(rows * width) * item);
    lost += parts_[part].expression()->read(first_row * width, scratch.bytes());
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(out.data() + static_cast<size_t>(row * row_ + column) * item,
                  scratch.data() + static_cast<size_t>(row * width) * item,
                  static_cast<size_t>(width) * item);
    }
    column += width;
  }
  return lost;
}

int64_t ConcatExpression::granularity() const {
  int64_t rows = 1;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const int64_t part = parts_[i].expression()->granularity();
    if (part > 1 && widths_[i] > 0) rows = std::max(rows, (part + widths_[i] - 1) / widths_[i]);
  }
  return rows > 1 || dim_ > 0 ? rows * row_ : 1;
}

bool ConcatExpression::drop(int64_t begin, int64_t end) const noexcept {
  bool all = true;
  each_piece(begin, end, [&](size_t part, int64_t first, int64_t length, int64_t /*position*/) {
    all = length * itemsize() >= long_run && parts_[part].expression()->drop(first, first + length) && all;
  });
  return all;
}

void ConcatExpression::each_input(const std::function<void(const Expression&)>& visit) const {
  for (const Tensor& part : parts_) visit(*part.expression());
}

GatherExpression::GatherExpression(ExpressionPtr input, int64_t outer, int64_t extent, int64_t inner,
                                   std::vector<int64_t> indices)
    : Expression(input->dtype(), outer * inner * static_cast<int64_t>(indices.size())),
      input_(std::move(input)),
      extent_(extent),
      inner_(inner),
      indices_(std::move(indices)) {}

Losses GatherExpression::read(int64_t begin, std::span<std::byte> out) const {
  const auto rows = static_cast<int64_t>(indices_.size());
  const bool uses_most = rows >= extent_ / 8;
  const bool is_small = inner_ * itemsize() <= short_run && extent_ * inner_ <= kernel_chunk;
  if (!uses_most || !is_small) return read_runs(begin, out);
  Losses lost;
  const int64_t width = rows * inner_;  // of the result, for each outer row
  const int64_t step = std::max<int64_t>(1, kernel_chunk / std::max(width, extent_ * inner_)) * width;
  const int64_t end = begin + count_in(out, itemsize());
  for (int64_t first = begin; first < end;) {
    const int64_t last = std::min(end, first / width * width + step);
    const auto bytes = static_cast<size_t>(last - first) * itemsize();
    lost += read_rows(first, out.first(bytes));
    out = out.subspan(bytes);
    first = last;
  }
  return lost;
}

Losses GatherExpression::read_rows(int64_t begin, std::span<std::byte> out) const {
  const auto rows = static_cast<int64_t>(indices_.size());
  const int64_t end = begin + count_in(out, itemsize());
  const int64_t first = begin / (rows * inner_);
  const int64_t last = (end + rows * inner_ - 1) / (rows * inner_);
  Scratch source(static_cast<size_t>((last - first) * extent_ * inner_) * itemsize());
  const Losses lost = input_->read(first * extent_ * inner_, source.bytes());
  if (lost.any()) return read_runs(begin, out);  // counted in what is not picked, too
  const std::span<const int64_t> indices(indices_);
  const auto run = static_cast<size_t>(inner_) * itemsize();
  std::byte* target = out.data();
  for (int64_t position = begin; position < end;) {
    const int64_t row = position / inner_;
    const std::byte* from = source.data() + static_cast<size_t>((row / rows - first) * extent_) * run;
    const int64_t column = position % inner_;
    if (column != 0 || end - position < inner_) {  // a part of a run
      const int64_t count = std::min(inner_ - column, end - position);
      from += static_cast<size_t>(indices[static_cast<size_t>(row % rows)]) * run;
      std::memcpy(target, from + static_cast<size_t>(column) * itemsize(),
                  static_cast<size_t>(count) * itemsize());
      target += static_cast<size_t>(count) * itemsize();
      position += count;
      continue;
    }
    const int64_t count = std::min(rows - row % rows, (end - position) / inner_);
    copy_runs(from, indices.subspan(static_cast<size_t>(row % rows), static_cast<size_t>(count)), run,
              target);
    target += static_cast<size_t>(count) * run;
    position += count * inner_;
  }
  return lost;
}

Losses GatherExpression::read_runs(int64_t begin, std::span<std::byte> out) const {
  Losses lost;
  const auto rows = static_cast<int64_t>(indices_.size());
  int64_t position = begin;
  while (!out.empty()) {
    const int64_t row = position / inner_;
    const int64_t column = position % inner_;
    const int64_t source =
        (row / rows * extent_ + indices_[static_cast<size_t>(row % rows)]) * inner_ + column;
    const int64_t count = std::min(inner_ - column, count_in(out, itemsize()));
    lost += input_->read(source, out.first(static_cast<size_t>(count) * itemsize()));
    out = out.subspan(static_cast<size_t>(count) * itemsize());
    position += count;
  }
  return lost;
}

// --- arithmetic

Losses CastExpression::read(int64_t begin, std::span<std::byte> out) const {
  const int64_t total = count_in(out, itemsize());
  const int64_t most = std::min(total, chunk_of(granularity()));
  Scratch scratch(static_cast<size_t>(most) * input_->itemsize());
  return for_each_chunk(begin, total, granularity(), [&](int64_t first, int64_t count, int64_t position) {
    Losses lost = input_->read(first, scratch.bytes().first(static_cast<size_t>(count) * input_->itemsize()));
    lost += cast_elements(input_->dtype(), scratch.data(), dtype(),
                          out.data() + static_cast<size_t>(position) * itemsize(), count);
    return lost;
  });
}

Losses UnaryExpression::read(int64_t begin, std::span<std::byte> out) const {
  return for_each_chunk(
      begin, count_in(out, itemsize()), granularity(), [&](int64_t first, int64_t count, int64_t position) {
        const auto part =
            out.subspan(static_cast<size_t>(position) * itemsize(), static_cast<size_t>(count) * itemsize());
        Losses lost = input_->read(first, part);
        lost += apply_unary(op_, dtype(), part.data(), count);
        return lost;
      });
}

Losses FiniteExpression::read(int64_t begin, std::span<std::byte> out) const {
  const Losses lost = input_->read(begin, out);
  const int64_t bad = first_not_finite(dtype(), out.data(), count_in(out, itemsize()));
  if (bad < 0) return lost;
  if (is_complex(dtype())) fail(Errc::value, "{}: an element is not finite", what_);
  double number = 0;
  cast_elements(dtype(), out.data() + static_cast<size_t>(bad) * itemsize(), DType::float64,
                reinterpret_cast<std::byte*>(&number), 1);
  fail(Errc::value, "{}: an element is {}", what_, std::isnan(number) ? "NaN" : number > 0 ? "inf" : "-inf");
}

namespace {

template <typename Visit>
void each_expression(const Expression& expression, std::unordered_set<const Expression*>& seen,
                     Visit&& visit) {
  if (!seen.insert(&expression).second) return;
  visit(expression);
  expression.each_input([&](const Expression& input) { each_expression(input, seen, visit); });
}

/// Whether the expression itself loses values, without its inputs.
bool loses_itself(const Expression& one) {
  const auto* cast = dynamic_cast<const CastExpression*>(&one);
  return (cast != nullptr && loses(cast->input()->dtype(), cast->dtype())) || one.is_computed() ||
         dynamic_cast<const UnaryExpression*>(&one) != nullptr ||
         dynamic_cast<const BinaryExpression*>(&one) != nullptr ||
         dynamic_cast<const MatmulExpression*>(&one) != nullptr;
}

/// Whether both read an expression that may have lost values.
bool read_the_same(const Expression& left, const Expression& right) {
  std::unordered_set<const Expression*> of_left;
  each_expression(left, of_left, [](const Expression&) {});
  std::unordered_set<const Expression*> of_right;
  bool shared = false;
  each_expression(right, of_right, [&](const Expression& one) {
    shared = shared || (of_left.contains(&one) && loses_itself(one));
  });
  return shared;
}

}  // namespace

BinaryExpression::BinaryExpression(ExpressionPtr left, ExpressionPtr right, BinaryOp kind)
    : Expression(left->dtype(), left->numel()),
      left_(std::move(left)),
      right_(std::move(right)),
      kind_(kind),
      share_losses_(read_the_same(*left_, *right_)) {}

Losses BinaryExpression::joined(const Losses& left, const Losses& right) const {
  if (!share_losses_) {
    Losses both = left;
    return both += right;
  }
  return {std::max(left.overflowed, right.overflowed), std::max(left.changed, right.changed),
          std::max(left.vanished, right.vanished)};
}

Losses BinaryExpression::read(int64_t begin, std::span<std::byte> out) const {
  const int64_t total = count_in(out, itemsize());
  const int64_t most = std::min(total, chunk_of(granularity()));
  Scratch scratch(static_cast<size_t>(most) * itemsize());
  return for_each_chunk(begin, total, granularity(), [&](int64_t first, int64_t count, int64_t position) {
    const auto part =
        out.subspan(static_cast<size_t>(position) * itemsize(), static_cast<size_t>(count) * itemsize());
    Losses lost = left_->read(first, part);
    lost = joined(lost, right_->read(first, scratch.bytes().first(part.size())));
    lost += apply_binary(kind_, dtype(), part.data(), scratch.data(), count);
    return lost;
  });
}

int64_t BinaryExpression::granularity() const {
  return std::max(left_->granularity(), right_->granularity());
}

bool BinaryExpression::drop(int64_t begin, int64_t end) const noexcept {
  const bool left = left_->drop(begin, end);
  return right_->drop(begin, end) && left;
}

MatmulExpression::MatmulExpression(ExpressionPtr left, ExpressionPtr right, int64_t rows, int64_t depth,
                                   int64_t columns)
    : Expression(left->dtype(), rows * columns),
      left_(std::move(left)),
      right_(std::move(right)),
      depth_(depth),
      columns_(columns) {}

namespace {

bool is_finite(DType dtype, const std::byte* elements, int64_t position) {
  return first_not_finite(dtype, elements + static_cast<size_t>(position) * size_of(dtype), 1) < 0;
}

}  // namespace

template <typename Visit>
void MatmulExpression::each_slab(DType compute, int64_t first_row, int64_t rows, Visit&& visit) const {
  // The depth is walked in slabs so that the right side is never needed as a whole.
  const Tensor left =
      Tensor::from_expression(left_, {numel_of({left_->numel() / std::max<int64_t>(depth_, 1)}), depth_});
  const int64_t slab =
      std::clamp<int64_t>((1 << 20) / std::max<int64_t>(columns_, 1), 1, std::max<int64_t>(depth_, 1));
  for (int64_t k = 0; k < depth_; k += slab) {
    const int64_t depth = std::min(slab, depth_ - k);
    const Tensor a = left.slice(0, first_row, first_row + rows).slice(1, k, k + depth).cast(compute);
    const Tensor b = Tensor::from_expression(right_, {depth_, columns_}).slice(0, k, k + depth).cast(compute);
    Scratch a_bytes(a.nbytes());
    Scratch b_bytes(b.nbytes());
    a.read(0, a_bytes.bytes());
    b.read(0, b_bytes.bytes());
    visit(a_bytes.data(), b_bytes.data(), depth);
  }
}

Losses MatmulExpression::read(int64_t begin, std::span<std::byte> out) const {
  const int64_t end = begin + count_in(out, itemsize());
  const int64_t first_row = begin / columns_;
  const int64_t rows = (end + columns_ - 1) / columns_ - first_row;
  const DType compute = dtype() == DType::float64 ? DType::float64 : DType::float32;  // of the sums
  Scratch sums(static_cast<size_t>(rows * columns_) * size_of(compute));
  std::memset(sums.data(), 0, sums.size());
  each_slab(compute, first_row, rows, [&](const std::byte* a, const std::byte* b, int64_t depth) {
    accumulate_matmul(compute, a, b, sums.data(), rows, depth, columns_);
  });
  const std::byte* wanted =
      sums.data() + static_cast<size_t>(begin - first_row * columns_) * size_of(compute);
  Losses lost = cast_elements(compute, wanted, dtype(), out.data(), end - begin);
  if (first_not_finite(compute, wanted, end - begin) >= 0)
    lost.overflowed += overflowed(compute, wanted, begin, end);
  return lost;
}

int64_t MatmulExpression::overflowed(DType compute, const std::byte* sums, int64_t begin, int64_t end) const {
  const int64_t first_row = begin / columns_;
  const int64_t rows = (end + columns_ - 1) / columns_ - first_row;
  std::vector<bool> row_is_finite(static_cast<size_t>(rows), true);
  std::vector<bool> column_is_finite(static_cast<size_t>(columns_), true);
  each_slab(compute, first_row, rows, [&](const std::byte* a, const std::byte* b, int64_t depth) {
    for (int64_t i = 0; i < rows * depth; ++i) {
      if (!is_finite(compute, a, i)) row_is_finite[static_cast<size_t>(i / depth)] = false;
    }
    for (int64_t i = 0; i < depth * columns_; ++i) {
      if (!is_finite(compute, b, i)) column_is_finite[static_cast<size_t>(i % columns_)] = false;
    }
  });
  int64_t count = 0;
  for (int64_t i = begin; i < end; ++i) {
    const bool was_finite = row_is_finite[static_cast<size_t>(i / columns_ - first_row)] &&
                            column_is_finite[static_cast<size_t>(i % columns_)];
    if (was_finite && !is_finite(compute, sums, i - begin)) ++count;
  }
  return count;
}

// --- sources without a file

Losses FillExpression::read(int64_t /*begin*/, std::span<std::byte> out) const {
  check_interrupt();
  for (size_t i = 0; i < out.size(); i += element_.size())
    std::memcpy(out.data() + i, element_.data(), element_.size());
  return {};
}

Losses GeneratedExpression::read(int64_t begin, std::span<std::byte> out) const {
  check_interrupt();
  const int64_t count = count_in(out, itemsize());
  std::vector<double> numbers(static_cast<size_t>(std::min(count, kernel_chunk)));
  for_each_chunk(begin, count, 1, [&](int64_t first, int64_t length, int64_t position) {
    for (int64_t i = 0; i < length; ++i) numbers[static_cast<size_t>(i)] = generator_(first + i);
    return cast_elements(DType::float64, reinterpret_cast<const std::byte*>(numbers.data()), dtype(),
                         out.data() + static_cast<size_t>(position) * itemsize(), length);
  });
  return {};  // a random number that becomes 0 was never anyone's value
}

namespace {

bool may_lose(const Expression& expression) {
  std::unordered_set<const Expression*> seen;
  bool may = false;
  each_expression(expression, seen, [&](const Expression& one) { may = may || loses_itself(one); });
  return may;
}

Losses losses_of(const Expression& expression) {
  Losses lost;
  const int64_t step = std::max(kernel_chunk, expression.granularity());
  Scratch scratch(static_cast<size_t>(std::min(step, expression.numel())) * expression.itemsize());
  for (int64_t begin = 0; begin < expression.numel(); begin += step) {
    const int64_t count = std::min(step, expression.numel() - begin);
    lost += expression.read(begin, scratch.bytes().first(static_cast<size_t>(count) * expression.itemsize()));
  }
  return lost;
}

template <typename Visit>
void each_source(const Expression& expression, std::unordered_set<const Expression*>& seen, Visit&& visit) {
  each_expression(expression, seen, [&](const Expression& one) {
    if (const auto* source = dynamic_cast<const ViewExpression*>(&one)) visit(*source);
  });
}

}  // namespace

Losses operand_losses(const Expression& expression) {
  Losses lost;
  std::unordered_set<const Expression*> seen;
  std::unordered_set<const Expression*> counted;
  each_expression(expression, seen, [&](const Expression& one) {
    if (dynamic_cast<const MatmulExpression*>(&one) == nullptr) return;
    one.each_input([&](const Expression& operand) {
      if (counted.insert(&operand).second && may_lose(operand)) lost += losses_of(operand);
    });
  });
  return lost;
}

bool is_moved(const Expression& expression) {
  bool computes = false;
  std::unordered_set<const Expression*> seen;
  each_expression(expression, seen, [&](const Expression& one) {
    computes = computes || loses_itself(one) || dynamic_cast<const CastExpression*>(&one) != nullptr ||
               dynamic_cast<const BitsExpression*>(&one) != nullptr ||
               dynamic_cast<const UnpackExpression*>(&one) != nullptr ||
               dynamic_cast<const GeneratedExpression*>(&one) != nullptr;
  });
  return !computes;
}

std::string_view problem_of(const Expression& expression) {
  if (const auto* source = dynamic_cast<const ViewExpression*>(&expression))
    return source->view().storage->problem();
  std::unordered_set<const Expression*> seen;
  std::string_view problem;
  each_source(expression, seen, [&](const ViewExpression& source) {
    if (problem.empty()) problem = source.view().storage->problem();
  });
  return problem;
}

void verify_sources(const Expression& expression, void (Storage::*verify)() const,
                    std::unordered_set<const Expression*>& seen) {
  each_source(expression, seen, [&](const ViewExpression& source) { ((*source.view().storage).*verify)(); });
}

void verify_read(const Expression& expression) {
  std::unordered_set<const Expression*> seen;
  each_source(expression, seen, [](const ViewExpression& source) {
    if (source.is_whole()) source.view().storage->verify_whole();
  });
}

void add_source_files(const Expression& expression, SourceFiles& files,
                      std::unordered_set<const Expression*>& seen) {
  each_source(expression, seen,
              [&](const ViewExpression& source) { source.view().storage->add_files(files); });
}

void verify_scattered(const Expression& expression) {
  std::unordered_set<const Expression*> seen;
  each_source(expression, seen, [](const ViewExpression& source) {
    if (source.is_scattered()) source.view().storage->verify_whole();
  });
}

void expect_scattered(const Expression& expression) {
  std::unordered_set<const Expression*> seen;
  each_source(expression, seen, [](const ViewExpression& source) {
    if (source.is_scattered()) source.view().storage->expect();
  });
}

void drop_sources(const Expression& expression) {
  std::unordered_set<const Expression*> seen;
  each_source(expression, seen, [](const ViewExpression& source) { source.drop_all(); });
}

}  // namespace cbk
