// The division of a tensor's elements for a pass on several threads: parts for tasks, and in each part
// blocks that are read at once. The division depends only on the tensors, so results do, too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <numeric>

#include "host/tensor/expression.hpp"

namespace cbk {

class Blocks {
 public:
  /// For tensors with the same number of elements that are read side by side. Errors: why a tensor cannot be
  /// read; such a tensor may have any number of elements. `row`: elements that are to be in one block; a row
  /// that is too long is cut.
  explicit Blocks(std::initializer_list<const Tensor*> tensors, int64_t row = 1)
      : numel_((*tensors.begin())->numel()) {
    for (const Tensor* tensor : tensors) {
      check_readable(*tensor);
      const int64_t cheap = std::lcm(tensor->expression()->granularity(), whole_words);
      const int64_t whole = cheap > 0 && cheap <= most_rows ? std::lcm(cheap, row) : 0;
      const int64_t rows = whole > 0 && whole <= most_rows ? whole : cheap;
      if (rows > 0 && rows <= most_rows) block_ = std::max(block_, (least_block + rows - 1) / rows * rows);
    }
    block_ = std::min(block_, std::max<int64_t>(numel_, 1));
  }

  [[nodiscard]] int64_t parts() const { return (numel_ + part() - 1) / part(); }
  /// Elements of a block at most.
  [[nodiscard]] int64_t block() const { return block_; }

  /// Calls `visit(begin, end)` for the blocks of a part, in order.
  template <typename Visit>
  void each(int64_t number, Visit&& visit) const {
    const int64_t stop = std::min((number + 1) * part(), numel_);
    for (int64_t begin = number * part(); begin < stop; begin += block_)
      visit(begin, std::min(begin + block_, stop));
  }

 private:
  static constexpr int64_t least_block = 1 << 16;
  static constexpr int64_t most_rows = 1 << 20;  // elements that are cheapest together
  static constexpr int64_t whole_words = 16;     // elements: 16 bytes, which a fingerprint is made of
  static constexpr int64_t blocks_of_part = 4;

  static void check_readable(const Tensor& tensor) {
    if (problem_of(*tensor.expression()).empty()) return;
    Bytes element(static_cast<size_t>(size_of(tensor.dtype())));
    tensor.read(0, element);
  }

  [[nodiscard]] int64_t part() const { return blocks_of_part * block_; }

  int64_t numel_;
  int64_t block_ = least_block;
};

}  // namespace cbk
