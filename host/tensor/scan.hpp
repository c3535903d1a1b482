// Checks of a tensor's elements, and a fingerprint of them, in one pass over blocks, on
// several threads. Ctrl-C is honoured between blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "host/tensor/kernels/losses.hpp"
#include "host/tensor/kernels/row_sums.hpp"
#include "host/tensor/odd_rows.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk {

struct Scan {
  int64_t numel = 0;
  int64_t nan = 0;
  int64_t inf = 0;
  int64_t first_nan = -1;  // in C order
  int64_t first_inf = -1;
  std::optional<Bytes> constant;  // the element that all are, bit by bit; or 0, if each is 0 or −0
  /// Equal for tensors of one dtype with the same bytes, in any shape; for other tensors almost always
  /// different.
  uint64_t fingerprint = 0;
  std::vector<Losses> losses;   // for each dtype that was asked for: what a cast would cost
  double largest = 0;           // of the finite |x|, if dtypes or sizes were asked for
  std::optional<RowSums> sums;  // if sizes were asked for, and the elements are floating
  std::optional<OddRows> rows;  // of a matrix, unless its rows are very long, many or short
};

/// Bytes with a checksum are verified, as in a copy. Errors: `format` for damage; `dtype`
/// for a dtype that the elements cannot be cast to. `quiet` asks for sizes: it is the share of the rows'
/// median RMS below which a row is quiet.
Scan scan(const Tensor& tensor, const std::vector<DType>& targets = {}, std::optional<double> quiet = {});

}  // namespace cbk
