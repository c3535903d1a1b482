// The difference of two matrices as a product of two thin ones: a truncated singular value decomposition,
// computed when the first element is read.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "host/tensor/tensor.hpp"

namespace cbk::compute {

/// Σ of squares of the difference's elements, and how much of it the product has.
struct Energy {
  double all = 0;
  double kept = 0;
};

/// The factors of one difference. Thread-safe. They are dropped when all of both was used, and computed again
/// if they are needed again.
///
/// Where the rank is much smaller than the matrix, a randomized decomposition with a fixed seed reads the
/// matrices in blocks of rows, once for each half step of its power iterations (Halko, Martinsson and Tropp,
/// 2011, algorithm 4.4); memory is bounded by the rank, not by the matrix. Else the decomposition is exact,
/// and the matrix is in memory.
class LowRank {
 public:
  /// Both are float32 matrices of one shape. Errors: `shape`, `dtype`; `value` for a rank below 1, and for
  /// an exact decomposition beyond 4 GiB.
  LowRank(Tensor tuned, Tensor base, int64_t rank);
  ~LowRank();
  LowRank(const LowRank&) = delete;
  LowRank& operator=(const LowRank&) = delete;

  [[nodiscard]] int64_t rank() const { return rank_; }  // at most the smaller extent of the matrix
  [[nodiscard]] int64_t rows() const;
  [[nodiscard]] int64_t columns() const;
  /// nullopt until the factors were computed.
  [[nodiscard]] std::optional<Energy> energy() const;

  enum class Side { left, right };
  /// Elements of (rows, rank) or (rank, columns) from position `begin` on.
  void read(Side side, int64_t begin, std::span<std::byte> out) const;
  /// Hint: that many elements of a side will not be read again.
  void drop(int64_t count) const noexcept;

  [[nodiscard]] const Tensor& tuned() const { return tuned_; }
  [[nodiscard]] const Tensor& base() const { return base_; }

 private:
  struct Factors;
  /// Columns of the randomized basis: more than the rank, so that the largest values are found.
  [[nodiscard]] int64_t width() const;
  [[nodiscard]] bool is_randomized() const;
  void compute() const;

  Tensor tuned_;
  Tensor base_;
  int64_t rank_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<Factors> factors_;
  mutable std::optional<Energy> energy_;
  mutable int64_t unused_ = 0;  // elements of both sides that are still to be used
};

/// A side of the product as a lazy tensor: left · right ≈ tuned - base. Each has the square roots of the
/// singular values.
Tensor low_rank_side(std::shared_ptr<const LowRank> product, LowRank::Side side);

}  // namespace cbk::compute
