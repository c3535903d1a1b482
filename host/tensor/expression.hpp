// The nodes behind lazy tensors. An expression enumerates `numel` elements of one dtype in C order and can
// produce any range of them. Immutable; `read` is called from several threads at once.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "host/tensor/kernels/elementwise.hpp"
#include "host/tensor/kernels/losses.hpp"
#include "host/tensor/kernels/strided_copy.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk {

class Expression {
 public:
  explicit Expression(DType dtype, int64_t numel) : dtype_(dtype), numel_(numel) {}
  Expression(const Expression&) = delete;
  Expression& operator=(const Expression&) = delete;
  virtual ~Expression() = default;

  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] int64_t numel() const { return numel_; }
  [[nodiscard]] uint32_t itemsize() const { return size_of(dtype_); }
  [[nodiscard]] uint64_t nbytes() const { return static_cast<uint64_t>(numel_) * itemsize(); }

  /// Elements [begin, begin + out.size() / itemsize) into `out`. Losses are counted per element of the
  /// result; losses of the operands of products are not (see operand_losses).
  virtual Losses read(int64_t begin, std::span<std::byte> out) const = 0;

  /// Ranges that start and end at multiples of this many elements are the cheapest (rows of a transposed
  /// matrix).
  [[nodiscard]] virtual int64_t granularity() const { return 1; }

  /// Hint: the range has been used and will not be read again. False if its sources may still be needed by
  /// other ranges: a reader that is done with all of them calls drop_sources.
  virtual bool drop(int64_t /*begin*/, int64_t /*end*/) const noexcept { return false; }

  /// Calls `visit` for each expression directly below.
  virtual void each_input(const std::function<void(const Expression&)>& /*visit*/) const {}

  /// Whether the node itself computes other elements than those of its inputs, in a way that may overflow.
  [[nodiscard]] virtual bool is_computed() const { return false; }

  /// What this node computes besides its dtype, its size and its inputs, as one short text: two nodes with
  /// the same text and the same inputs have the same elements (host/tensor/description.hpp).
  [[nodiscard]] virtual std::string parameters() const = 0;

  /// Views that are read to compute everything once, shared ones as often as they are used (saturating).
  [[nodiscard]] uint64_t reads() const {
    if (reads_ == 0) {
      each_input([&](const Expression& input) {
        if (__builtin_add_overflow(reads_, input.reads(), &reads_)) reads_ = ~uint64_t{0};
      });
      reads_ = std::max<uint64_t>(reads_, 1);
    }
    return reads_;
  }

  /// The length of the longest path of expressions below. A Tensor computes it when it is made, so the
  /// expressions below have theirs and nothing recurses.
  [[nodiscard]] int depth() const {
    if (depth_ == 0) {
      int below = 0;
      each_input([&](const Expression& input) { below = std::max(below, input.depth()); });
      depth_ = below + 1;
    }
    return depth_;
  }

 private:
  DType dtype_;
  int64_t numel_;
  mutable int depth_ = 0;  // fixed before the expression is shared, as is reads_
  mutable uint64_t reads_ = 0;
};

using ExpressionPtr = std::shared_ptr<const Expression>;

/// One storage seen through strides.
class ViewExpression final : public Expression {
 public:
  explicit ViewExpression(View view);
  [[nodiscard]] const View& view() const { return view_; }
  Losses read(int64_t begin, std::span<std::byte> out) const override;
  [[nodiscard]] int64_t granularity() const override;
  bool drop(int64_t begin, int64_t end) const noexcept override;
  [[nodiscard]] std::string parameters() const override;
  /// Hint: nothing of this view will be read again.
  void drop_all() const noexcept;
  /// Whether elements are picked from all over the storage, so that a reader that needs its bytes in order
  /// must read them again.
  [[nodiscard]] bool is_scattered() const { return !is_dense() && !has_long_runs(); }
  /// Whether it has as many bytes as the storage.
  [[nodiscard]] bool is_whole() const;

 private:
  [[nodiscard]] bool is_dense() const { return loops_.empty(); }  // one contiguous run
  [[nodiscard]] bool has_long_runs() const;
  View view_;
  std::vector<Loop> loops_;  // none where they are one run
};

/// Strides over the elements of another expression, for views that cannot be pushed down to a storage.
class StridedExpression final : public Expression {
 public:
  StridedExpression(ExpressionPtr input, int64_t offset, const Shape& dims, const Shape& strides);
  Losses read(int64_t begin, std::span<std::byte> out) const override;
  [[nodiscard]] int64_t granularity() const override;
  void each_input(const std::function<void(const Expression&)>& visit) const override { visit(*input_); }
  [[nodiscard]] std::string parameters() const override;

 private:
  /// Whether it reads runs with elements that are not part of the result.
  [[nodiscard]] bool has_gaps() const;

  ExpressionPtr input_;
  int64_t offset_;
  std::vector<Loop> loops_;
};

/// Parts side by side along `dim`: for each row of the dims before it, part 0's piece, then part 1's, …
class ConcatExpression final : public Expression {
 public:
  ConcatExpression(std::vector<Tensor> parts, size_t dim);
  [[nodiscard]] const std::vector<Tensor>& parts() const { return parts_; }
  [[nodiscard]] size_t dim() const { return dim_; }
  Losses read(int64_t begin, std::span<std::byte> out) const override;
  [[nodiscard]] int64_t granularity() const override;
  bool drop(int64_t begin, int64_t end) const noexcept override;
  void each_input(const std::function<void(const Expression&)>& visit) const override;
  [[nodiscard]] std::string parameters() const override;

 private:
  /// Calls `piece(part, begin_in_part, count, position)` for the pieces of [begin, end), in order.
  template <typename Piece>
  void each_piece(int64_t begin, int64_t end, Piece&& piece) const;

  std::vector<Tensor> parts_;
  size_t dim_;
  std::vector<int64_t> widths_;  // elements per row and part
  int64_t row_ = 0;
};

/// Rows of `input` (blocks of `inner` elements, `extent` of them per outer row) in the order `indices`.
class GatherExpression final : public Expression {
 public:
  GatherExpression(ExpressionPtr input, int64_t outer, int64_t extent, int64_t inner,
                   std::vector<int64_t> indices);
  Losses read(int64_t begin, std::span<std::byte> out) const override;
  void each_input(const std::function<void(const Expression&)>& visit) const override { visit(*input_); }
  [[nodiscard]] std::string parameters() const override;

 private:
  /// One run after the other.
  Losses read_runs(int64_t begin, std::span<std::byte> out) const;
  /// All of the input for some outer rows, of which the runs are picked in memory.
  Losses read_rows(int64_t begin, std::span<std::byte> out) const;

  ExpressionPtr input_;
  int64_t extent_;
  int64_t inner_;
  std::vector<int64_t> indices_;
};

class CastExpression final : public Expression {
 public:
  /// The purpose of the cast. The result of arithmetic is rounded to the dtype of its operands; more
  /// arithmetic on it continues from `input`.
  enum class Purpose { conversion, rounding };
  CastExpression(ExpressionPtr input, DType dtype, Purpose purpose = Purpose::conversion)
      : Expression(dtype, input->numel()), input_(std::move(input)), purpose_(purpose) {}
  Losses read(int64_t begin, std::span<std::byte> out) const override;
  [[nodiscard]] int64_t granularity() const override { return input_->granularity(); }
  bool drop(int64_t begin, int64_t end) const noexcept override { return input_->drop(begin, end); }
  void each_input(const std::function<void(const Expression&)>& visit) const override { visit(*input_); }
  [[nodiscard]] const ExpressionPtr& input() const { return input_; }
  [[nodiscard]] Purpose purpose() const { return purpose_; }
  [[nodiscard]] std::string parameters() const override;

 private:
  ExpressionPtr input_;
  Purpose purpose_;
};

/// The bytes of another expression as a dtype of the same size.
class BitsExpression final : public Expression {
 public:
  BitsExpression(ExpressionPtr input, DType dtype)
      : Expression(dtype, input->numel()), input_(std::move(input)) {}
  Losses read(int64_t begin, std::span<std::byte> out) const override { return input_->read(begin, out); }
  [[nodiscard]] int64_t granularity() const override { return input_->granularity(); }
  bool drop(int64_t begin, int64_t end) const noexcept override { return input_->drop(begin, end); }
  void each_input(const std::function<void(const Expression&)>& visit) const override { visit(*input_); }
  [[nodiscard]] std::string parameters() const override;

 private:
  ExpressionPtr input_;
};

class UnaryExpression final : public Expression {
 public:
  UnaryExpression(ExpressionPtr input, UnaryOp op)
      : Expression(input->dtype(), input->numel()), input_(std::move(input)), op_(op) {}
  Losses read(int64_t begin, std::span<std::byte> out) const override;
  [[nodiscard]] int64_t granularity() const override { return input_->granularity(); }
  bool drop(int64_t begin, int64_t end) const noexcept override { return input_->drop(begin, end); }
  void each_input(const std::function<void(const Expression&)>& visit) const override { visit(*input_); }
  [[nodiscard]] const ExpressionPtr& input() const { return input_; }
  [[nodiscard]] const UnaryOp& op() const { return op_; }
  [[nodiscard]] std::string parameters() const override;

 private:
  ExpressionPtr input_;
  UnaryOp op_;
};

/// The elements of another expression, which must all be finite: a `value` error that begins with `what`.
class FiniteExpression final : public Expression {
 public:
  FiniteExpression(ExpressionPtr input, std::string what)
      : Expression(input->dtype(), input->numel()), input_(std::move(input)), what_(std::move(what)) {}
  Losses read(int64_t begin, std::span<std::byte> out) const override;
  [[nodiscard]] int64_t granularity() const override { return input_->granularity(); }
  bool drop(int64_t begin, int64_t end) const noexcept override { return input_->drop(begin, end); }
  void each_input(const std::function<void(const Expression&)>& visit) const override { visit(*input_); }
  [[nodiscard]] const ExpressionPtr& input() const { return input_; }
  [[nodiscard]] const std::string& what() const { return what_; }
  [[nodiscard]] std::string parameters() const override;

 private:
  ExpressionPtr input_;
  std::string what_;
};

/// Two tensors of the same dtype and numel, element by element.
class BinaryExpression final : public Expression {
 public:
  BinaryExpression(ExpressionPtr left, ExpressionPtr right, BinaryOp kind);
  Losses read(int64_t begin, std::span<std::byte> out) const override;
  [[nodiscard]] int64_t granularity() const override;
  bool drop(int64_t begin, int64_t end) const noexcept override;
  void each_input(const std::function<void(const Expression&)>& visit) const override {
    visit(*left_);
    visit(*right_);
  }
  [[nodiscard]] std::string parameters() const override;

 private:
  /// In x + 2 * x, both sides have the losses of x; these count once.
  [[nodiscard]] Losses joined(const Losses& left, const Losses& right) const;
  ExpressionPtr left_;
  ExpressionPtr right_;
  BinaryOp kind_;
  bool share_losses_;
};

/// (rows, depth) × (depth, columns).
class MatmulExpression final : public Expression {
 public:
  MatmulExpression(ExpressionPtr left, ExpressionPtr right, int64_t rows, int64_t depth, int64_t columns);
  Losses read(int64_t begin, std::span<std::byte> out) const override;
  /// Many rows at once: each time, all of the right side is read.
  [[nodiscard]] int64_t granularity() const override {
    constexpr int64_t elements = int64_t{1} << 21;
    return columns_ * std::max<int64_t>(1, elements / columns_);
  }
  void each_input(const std::function<void(const Expression&)>& visit) const override {
    visit(*left_);
    visit(*right_);
  }
  [[nodiscard]] std::string parameters() const override;

 private:
  /// Calls `visit(a, b, depth)` with `rows` rows of the left side and all of the right, `depth` of the sums
  /// at a time.
  template <typename Visit>
  void each_slab(DType compute, int64_t first_row, int64_t rows, Visit&& visit) const;
  /// The number of sums, elements [begin, end), that are not finite although their row and column are.
  int64_t overflowed(DType compute, const std::byte* sums, int64_t begin, int64_t end) const;

  ExpressionPtr left_;
  ExpressionPtr right_;
  int64_t depth_;
  int64_t columns_;
};

/// One element, repeated.
class FillExpression final : public Expression {
 public:
  FillExpression(DType dtype, int64_t numel, Bytes element)
      : Expression(dtype, numel), element_(std::move(element)) {}
  [[nodiscard]] const Bytes& element() const { return element_; }
  [[nodiscard]] std::string parameters() const override;
  Losses read(int64_t begin, std::span<std::byte> out) const override;

 private:
  Bytes element_;
};

/// Elements that follow from their position: random numbers, triangles.
class GeneratedExpression final : public Expression {
 public:
  /// The double at position i.
  using Generator = std::function<double(int64_t)>;
  GeneratedExpression(DType dtype, int64_t numel, Generator generator)
      : Expression(dtype, numel), generator_(std::move(generator)) {}
  Losses read(int64_t begin, std::span<std::byte> out) const override;
  /// Some of the elements: a generator is a program.
  [[nodiscard]] std::string parameters() const override;

 private:
  Generator generator_;
};

/// The losses of the operands of matrix products below `expression`. The operands are read as often as the
/// result needs, so each that can lose values is read here once more, as a whole.
Losses operand_losses(const Expression& expression);

/// Whether every element is one of a storage, or a constant, as it is: nothing is computed.
bool is_moved(const Expression& expression);

/// Why a storage below `expression` cannot be read (Storage::problem); empty if all can.
std::string_view problem_of(const Expression& expression);

/// Verifies the storages below `expression` (Storage::verify or verify_whole); those below an expression in
/// `seen` have been.
void verify_sources(const Expression& expression, void (Storage::*verify)() const,
                    std::unordered_set<const Expression*>& seen);

/// Call after all elements were read, in any order: verifies the storages of which nothing is left unread.
void verify_read(const Expression& expression);

/// Adds the files that the bytes come from; expressions in `seen` have been visited.
void add_source_files(const Expression& expression, SourceFiles& files,
                      std::unordered_set<const Expression*>& seen);

/// Verifies the storages that are about to be read out of order: afterwards they are in the page cache.
void verify_scattered(const Expression& expression);

/// Hint: what is read out of order below `expression` will be read now.
void expect_scattered(const Expression& expression);

/// Hint: nothing below `expression` will be read again.
void drop_sources(const Expression& expression);

}  // namespace cbk
