#include "host/compute/low_rank.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "host/base/bytes.hpp"
#include "host/base/error.hpp"
#include "host/base/interrupt.hpp"
#include "host/base/parallel.hpp"
#include "host/base/scratch.hpp"
#include "host/compute/dense_svd.hpp"
#include "host/compute/gemm.hpp"
#include "host/tensor/expression.hpp"
#include "host/tensor/kernels/merge.hpp"

namespace cbk::compute {

struct LowRank::Factors {
  std::vector<float> left;   // (rows, rank)
  std::vector<float> right;  // (rank, columns)
};

namespace {

using Floats = std::vector<float>;

constexpr int half_steps = 5;            // odd: the last one gives the left side
constexpr int64_t block_size = 1 << 20;  // elements of the difference in memory
constexpr int64_t reading_tasks = 4;     // of a block: results do not depend on the number of threads
constexpr int64_t least_oversampling = 16;

size_t product(int64_t rows, int64_t columns) {
  return static_cast<size_t>(rows) * static_cast<size_t>(columns);
}

/// The difference of two matrices, in blocks of rows.
class Difference {
 public:
  Difference(const Tensor& tuned, const Tensor& base) : tuned_(tuned), base_(base) {}
  [[nodiscard]] int64_t rows() const { return tuned_.shape()[0]; }
  [[nodiscard]] int64_t columns() const { return tuned_.shape()[1]; }

  /// Calls `visit(first_row, rows, elements)` for the blocks, in order.
  template <typename Visit>
  void each(Visit&& visit) const {
    const int64_t step = std::clamp<int64_t>(block_size / columns(), 1, rows());
    Floats slab(product(step, columns()));
    for (int64_t row = 0; row < rows(); row += step) {
      check_interrupt();
      const int64_t count = std::min(step, rows() - row);
      read(row, count, slab);
      visit(row, count, slab.data());
    }
  }

 private:
  void read(int64_t first_row, int64_t count, Floats& slab) const {
    parallel_for(reading_tasks, [&](int64_t task) {
      const int64_t begin = count * task / reading_tasks;
      const int64_t rows = count * (task + 1) / reading_tasks - begin;
      if (rows == 0) return;
      const int64_t position = (first_row + begin) * columns();
      const std::span<float> part(slab.data() + begin * columns(), product(rows, columns()));
      Scratch other(part.size_bytes());
      tuned_.read(position, std::as_writable_bytes(part));
      base_.read(position, other.bytes());
      for (const Tensor* tensor : {&tuned_, &base_})
        tensor->expression()->drop(position, position + rows * columns());
      subtract(DType::float32, std::as_writable_bytes(part).data(), other.data(), rows * columns());
    });
  }

  const Tensor& tuned_;
  const Tensor& base_;
};

Floats random_matrix(int64_t rows, int64_t columns) {
  constexpr uint64_t seed = 20240229;  // any: the result's subspace is the same within rounding
  Floats out(product(rows, columns));
  Tensor::normal(DType::float32, {rows, columns}, 0, 1, seed).read(0, std::as_writable_bytes(std::span(out)));
  return out;
}

/// difference · v, (rows, width). Adds the squares of the difference to `energy`.
Floats times(const Difference& difference, const Floats& v, int64_t width, double& energy) {
  Floats out(product(difference.rows(), width));
  difference.each([&](int64_t row, int64_t count, const float* slab) {
    const auto* bytes = reinterpret_cast<const std::byte*>(slab);
    energy += products_of(DType::float32, bytes, bytes, count * difference.columns()).aa;
    parallel_gemm<float>({slab, difference.columns()}, {v.data(), width}, {out.data() + row * width, width},
                         count, width, difference.columns());
  });
  return out;
}

/// The transposed difference · y, (columns, width).
Floats transposed_times(const Difference& difference, const Floats& y, int64_t width) {
  const int64_t columns = difference.columns();
  Floats out(product(columns, width));
  constexpr int64_t parts = 8;
  difference.each([&](int64_t row, int64_t count, const float* slab) {
    const Matrix<const float> transposed{slab, columns, true};
    parallel_for(parts, [&](int64_t part) {
      const int64_t begin = columns * part / parts;
      const int64_t rows = columns * (part + 1) / parts - begin;
      if (rows == 0) return;
      gemm<float>(transposed.block(begin, 0), {y.data() + row * width, width},
                  {out.data() + begin * width, width}, rows, width, count, 1, true);
    });
  });
  return out;
}

std::vector<double> widened(const Floats& numbers) {
  return {numbers.begin(), numbers.end()};
}

/// (rows, inner) · the first `rank` columns of (inner, all), each column times a factor.
Floats scaled_product(const Floats& a, const std::vector<double>& b, const std::vector<double>& factors,
                      int64_t rows, int64_t inner, int64_t rank) {
  const auto all = static_cast<int64_t>(b.size()) / inner;
  Floats chosen(product(inner, rank));
  for (int64_t i = 0; i < inner; ++i) {
    for (int64_t j = 0; j < rank; ++j)
      chosen[static_cast<size_t>(i * rank + j)] =
          static_cast<float>(b[static_cast<size_t>(i * all + j)] * factors[static_cast<size_t>(j)]);
  }
  Floats out(product(rows, rank));
  parallel_gemm<float>({a.data(), inner}, {chosen.data(), rank}, {out.data(), rank}, rows, rank, inner);
  return out;
}

std::vector<double> square_roots(const std::vector<double>& values) {
  std::vector<double> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), [](double value) { return std::sqrt(value); });
  return out;
}

double energy_of(const std::vector<double>& values, int64_t rank) {
  return std::inner_product(values.begin(), values.begin() + rank, values.begin(), 0.0);
}

/// (rows, columns) → (columns, rows).
std::vector<double> transposed(const std::vector<double>& matrix, int64_t rows, int64_t columns) {
  std::vector<double> out(matrix.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j)
      out[static_cast<size_t>(j * rows + i)] = matrix[static_cast<size_t>(i * columns + j)];
  }
  return out;
}

struct Decomposed {
  Floats left;
  Floats right;
  Energy energy;
};

Decomposed exact(const Difference& difference, int64_t rank) {
  const int64_t rows = difference.rows();
  const int64_t columns = difference.columns();
  std::vector<double> whole(product(rows, columns));
  difference.each([&](int64_t row, int64_t count, const float* slab) {
    std::copy_n(slab, count * columns, whole.begin() + row * columns);
  });
  const Svd svd = svd_of(whole, rows, columns);
  const auto count = static_cast<int64_t>(svd.values.size());
  const std::vector<double> roots = square_roots(svd.values);
  Decomposed out{Floats(product(rows, rank)),
                 Floats(product(rank, columns)),
                 {energy_of(svd.values, count), energy_of(svd.values, rank)}};
  for (int64_t j = 0; j < rank; ++j) {
    const double root = roots[static_cast<size_t>(j)];
    for (int64_t i = 0; i < rows; ++i)
      out.left[static_cast<size_t>(i * rank + j)] =
          static_cast<float>(svd.left[static_cast<size_t>(i * count + j)] * root);
    for (int64_t i = 0; i < columns; ++i)
      out.right[static_cast<size_t>(j * columns + i)] =
          static_cast<float>(svd.right[static_cast<size_t>(j * columns + i)] * root);
  }
  return out;
}

Decomposed randomized(const Difference& difference, int64_t rank, int64_t width) {
  Floats v = random_matrix(difference.columns(), width);
  Floats y;
  double all = 0;
  for (int step = 0; step < half_steps; ++step) {
    if (step % 2 == 0) {
      all = 0;
      y = times(difference, v, width, all);
      if (step + 1 < half_steps) orthonormalize(y, difference.rows(), width);
    } else {
      v = transposed_times(difference, y, width);
      orthonormalize(v, difference.columns(), width);
    }
  }
  // difference ≈ y · vᵀ; y = basis · (basisᵀ · y), of which the small matrix is decomposed.
  Floats basis = y;
  orthonormalize(basis, difference.rows(), width);
  Floats core(product(width, width));
  parallel_gemm<float>({basis.data(), width, true}, {y.data(), width}, {core.data(), width}, width, width,
                       difference.rows());
  const Svd svd = svd_of(widened(core), width, width);
  const std::vector<double> roots = square_roots(svd.values);
  const Floats right =
      scaled_product(v, transposed(svd.right, width, width), roots, difference.columns(), width, rank);
  Decomposed out{scaled_product(basis, svd.left, roots, difference.rows(), width, rank),
                 Floats(right.size()),
                 {all, std::min(all, energy_of(svd.values, rank))}};
  for (int64_t i = 0; i < difference.columns(); ++i) {
    for (int64_t j = 0; j < rank; ++j)
      out.right[static_cast<size_t>(j * difference.columns() + i)] = right[static_cast<size_t>(i * rank + j)];
  }
  return out;
}

/// A side of the product. It reads its inputs in no order.
class LowRankExpression final : public Expression {
 public:
  LowRankExpression(std::shared_ptr<const LowRank> product, LowRank::Side side)
      : Expression(DType::float32,
                   product->rank() * (side == LowRank::Side::left ? product->rows() : product->columns())),
        product_(std::move(product)),
        side_(side) {}
  Losses read(int64_t begin, std::span<std::byte> out) const override {
    product_->read(side_, begin, out);
    return {};
  }
  bool drop(int64_t begin, int64_t end) const noexcept override {
    product_->drop(end - begin);
    return true;
  }
  void each_input(const std::function<void(const Expression&)>& visit) const override {
    visit(*product_->tuned().expression());
    visit(*product_->base().expression());
  }
  [[nodiscard]] bool is_computed() const override { return true; }
  [[nodiscard]] std::string parameters() const override {
    return fmt::format("low rank {} {} of {} x {}", side_ == LowRank::Side::left ? "left" : "right",
                       product_->rank(), product_->rows(), product_->columns());
  }

 private:
  std::shared_ptr<const LowRank> product_;
  LowRank::Side side_;
};

}  // namespace

LowRank::LowRank(Tensor tuned, Tensor base, int64_t rank) : tuned_(std::move(tuned)), base_(std::move(base)) {
  if (tuned_.dim() != 2 || tuned_.shape() != base_.shape() || tuned_.numel() == 0)
    fail(Errc::shape, "expected two matrices of one shape, found {} and {}", to_string(tuned_.shape()),
         to_string(base_.shape()));
  if (tuned_.dtype() != DType::float32 || base_.dtype() != DType::float32)
    fail(Errc::dtype, "expected two float32 matrices, found {} and {}", name_of(tuned_.dtype()),
         name_of(base_.dtype()));
  if (rank < 1) fail(Errc::value, "expected a rank of at least 1, found {}", rank);
  rank_ = std::min({rank, rows(), columns()});
  constexpr uint64_t most = uint64_t{4} << 30;
  const uint64_t needed = static_cast<uint64_t>(tuned_.numel()) * sizeof(double);
  if (!is_randomized() && needed > most)
    fail(Errc::value, "an exact decomposition of {} at rank {} needs {} in memory; choose a smaller rank",
         to_string(tuned_.shape()), rank_, format_size(needed));
}

LowRank::~LowRank() = default;

int64_t LowRank::rows() const {
  return tuned_.shape()[0];
}

int64_t LowRank::columns() const {
  return tuned_.shape()[1];
}

std::optional<Energy> LowRank::energy() const {
  const std::lock_guard lock(mutex_);
  return energy_;
}

int64_t LowRank::width() const {
  return rank_ + std::max(least_oversampling, rank_ / 2);
}

bool LowRank::is_randomized() const {
  return 3 * width() <= std::min(rows(), columns());
}

void LowRank::compute() const {
  const Difference difference(tuned_, base_);
  Decomposed found = is_randomized() ? randomized(difference, rank_, width()) : exact(difference, rank_);
  factors_ = std::make_unique<Factors>(Factors{std::move(found.left), std::move(found.right)});
  energy_ = found.energy;
  unused_ = rank_ * (rows() + columns());
}

void LowRank::read(Side side, int64_t begin, std::span<std::byte> out) const {
  const std::lock_guard lock(mutex_);
  if (!factors_) compute();
  const Floats& elements = side == Side::left ? factors_->left : factors_->right;
  std::memcpy(out.data(), elements.data() + begin, out.size());
}

void LowRank::drop(int64_t count) const noexcept {
  const std::lock_guard lock(mutex_);
  unused_ -= count;
  if (unused_ <= 0) factors_.reset();
}

Tensor low_rank_side(std::shared_ptr<const LowRank> product, LowRank::Side side) {
  const int64_t rank = product->rank();
  Shape shape = side == LowRank::Side::left ? Shape{product->rows(), rank} : Shape{rank, product->columns()};
  return Tensor::from_expression(std::make_shared<LowRankExpression>(std::move(product), side),
                                 std::move(shape));
}

}  // namespace cbk::compute
