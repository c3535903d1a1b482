// Rows and columns of a matrix that are unlike the others: zero, small, or equal to their neighbours.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "host/base/bytes.hpp"
#include "host/tensor/dtype.hpp"
#include "host/tensor/kernels/row_sums.hpp"

namespace cbk {

/// How many rows or columns there are of a kind, and the first few runs of them: numbers from 0, with both
/// ends.
struct Runs {
  int64_t count = 0;
  std::vector<std::pair<int64_t, int64_t>> first;

  void add(int64_t number);
};

struct OddRows {
  int64_t rows = 0;
  int64_t columns = 0;
  double median = 0;  // of the RMS of the rows that are not zero
  Runs zero;
  Runs quiet;     // not zero, with an RMS far below the median
  Runs repeated;  // not zero, and equal to a neighbour
  Runs zero_columns;
};

/// What a pass over the rows collects. Parts of the rows may be added on several threads.
class RowCollector {
 public:
  /// The columns that are zero in all rows of a part so far.
  struct Part {
    bool is_begun = false;
    std::vector<int64_t> zero_columns;
  };

  /// Whether the rows are long and few enough that a pass keeps a number of each.
  static bool is_suitable(int64_t rows, int64_t columns);

  RowCollector(DType dtype, int64_t rows, int64_t columns);

  /// Adds whole rows, the first of which has the number `row`. The sums are those of all of them.
  RowSums add(Part& part, int64_t row, ByteView block);

  /// `parts`: all, which cover all rows. `quiet`: the share of the median below which a row is quiet.
  [[nodiscard]] OddRows found(const std::vector<const Part*>& parts, double quiet) const;

 private:
  enum class Same : uint8_t { no, yes, unknown };  // as the row before

  void add_columns(Part& part, const std::byte* row) const;
  [[nodiscard]] bool is_same(size_t row) const;
  [[nodiscard]] double median() const;

  DType dtype_;
  int64_t columns_;
  std::vector<double> squares_;  // of each row; negative: not all elements are finite
  std::vector<Same> same_;
};

}  // namespace cbk
