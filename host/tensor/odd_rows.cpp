#include "host/tensor/odd_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

namespace cbk {
namespace {

constexpr size_t runs_kept = 8;

/// Whether an element is 0 or −0.
bool is_zero_number(DType dtype, const std::byte* element) {
  if (dtype == DType::float8_e8m0fnu) return false;  // which has no 0
  const auto size = static_cast<size_t>(size_of(dtype));
  uint64_t bits = 0;
  std::memcpy(&bits, element, size);
  const bool has_sign = dtype != DType::float8_e4m3fnuz && dtype != DType::float8_e5m2fnuz;
  return (has_sign ? bits & ~(uint64_t{1} << (8 * size - 1)) : bits) == 0;
}

}  // namespace

void Runs::add(int64_t number) {
  ++count;
  if (!first.empty() && first.back().second + 1 == number) {
    first.back().second = number;
  } else if (first.size() < runs_kept) {
    first.emplace_back(number, number);
  }
}

bool RowCollector::is_suitable(int64_t rows, int64_t columns) {
  constexpr int64_t least = 8, most = 1 << 20;
  return rows >= least && columns >= least && rows <= most && columns <= most;
}

RowCollector::RowCollector(DType dtype, int64_t rows, int64_t columns)
    : dtype_(dtype),
      columns_(columns),
      squares_(static_cast<size_t>(rows)),
      same_(static_cast<size_t>(rows), Same::unknown) {}

RowSums RowCollector::add(Part& part, int64_t row, ByteView block) {
  const auto size = static_cast<size_t>(columns_ * size_of(dtype_));
  RowSums all;
  for (size_t at = 0; at < block.size(); at += size, ++row) {
    const std::byte* elements = block.data() + at;
    const RowSums sums = sums_of_row(dtype_, elements, columns_);
    const auto number = static_cast<size_t>(row);
    squares_[number] = sums.count == columns_ ? sums.squares : -1;
    if (at > 0) same_[number] = std::memcmp(elements, elements - size, size) == 0 ? Same::yes : Same::no;
    if (sums.largest > 0 || sums.count < columns_) add_columns(part, elements);
    all += sums;
  }
  return all;
}

/// The columns left are few after some rows, unless these are dead.
void RowCollector::add_columns(Part& part, const std::byte* row) const {
  const int64_t size = size_of(dtype_);
  if (part.is_begun) {
    std::erase_if(part.zero_columns,
                  [&](int64_t column) { return !is_zero_number(dtype_, row + column * size); });
    return;
  }
  part.is_begun = true;
  for (int64_t column = 0; column < columns_; ++column) {
    if (is_zero_number(dtype_, row + column * size)) part.zero_columns.push_back(column);
  }
}

/// Whether a row is equal to the one before it. Where a block begins this is not known: there it has to have
/// the same size, and one of the two an equal neighbour.
bool RowCollector::is_same(size_t row) const {
  if (row == 0) return false;
  if (same_[row] != Same::unknown) return same_[row] == Same::yes;
  const bool is_near = same_[row - 1] == Same::yes || (row + 1 < same_.size() && same_[row + 1] == Same::yes);
  return is_near && squares_[row] == squares_[row - 1];
}

double RowCollector::median() const {
  std::vector<double> sizes;
  sizes.reserve(squares_.size());
  std::copy_if(squares_.begin(), squares_.end(), std::back_inserter(sizes),
               [](double squares) { return squares > 0; });
  if (sizes.empty()) return 0;
  const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
  std::nth_element(sizes.begin(), middle, sizes.end());
  return std::sqrt(*middle / static_cast<double>(columns_));
}

OddRows RowCollector::found(const std::vector<const Part*>& parts, double quiet) const {
  OddRows out;
  out.rows = static_cast<int64_t>(squares_.size());
  out.columns = columns_;
  out.median = median();
  const double least = quiet * quiet * out.median * out.median * static_cast<double>(columns_);
  for (size_t row = 0; row < squares_.size(); ++row) {
    const auto number = static_cast<int64_t>(row);
    if (squares_[row] == 0) {
      out.zero.add(number);
    } else if (squares_[row] > 0 && squares_[row] < least) {
      out.quiet.add(number);
    }
    const bool is_repeated = is_same(row) || (row + 1 < squares_.size() && is_same(row + 1));
    if (squares_[row] > 0 && is_repeated) out.repeated.add(number);
  }
  std::vector<int64_t> times(static_cast<size_t>(columns_));
  int64_t begun = 0;
  for (const Part* part : parts) {
    begun += part->is_begun ? 1 : 0;
    for (const int64_t column : part->zero_columns) ++times[static_cast<size_t>(column)];
  }
  for (int64_t column = 0; begun > 0 && column < columns_; ++column) {
    if (times[static_cast<size_t>(column)] == begun) out.zero_columns.add(column);
  }
  return out;
}

}  // namespace cbk
