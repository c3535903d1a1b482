#include "host/tensor/csv.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <string>
#include <unordered_set>

#include "host/base/error.hpp"
#include "host/base/interrupt.hpp"
#include "host/base/transaction.hpp"
#include "host/tensor/expression.hpp"

namespace cbk {
namespace {

constexpr int64_t block_elements = 1 << 16;

/// The dtype that all elements are printed from.
DType printed_as(DType dtype) {
  if (is_complex(dtype)) fail(Errc::dtype, "complex numbers have no form in CSV; write an .npy file");
  if (dtype == DType::float64 || dtype == DType::uint64) return dtype;
  return is_floating(dtype) ? DType::float32 : DType::int64;
}

template <typename Number>
void append(std::string& out, const std::byte* source) {
  Number number;
  std::memcpy(&number, source, sizeof number);
  if constexpr (std::is_floating_point_v<Number>) {
    if (std::isnan(number)) number = std::fabs(number);  // no "-nan"
  }
  out += fmt::format("{}", number);
}

using Append = void (*)(std::string& out, const std::byte* source);

Append append_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return append<float>;
    case DType::float64:
      return append<double>;
    case DType::uint64:
      return append<uint64_t>;
    default:
      return append<int64_t>;
  }
}

}  // namespace

void write_csv(const Tensor& tensor, const std::filesystem::path& target, bool overwrite) {
  const Tensor numbers = tensor.cast(printed_as(tensor.dtype()));
  const Append append_number = append_of(numbers.dtype());
  const size_t size = size_of(numbers.dtype());
  const int64_t columns = tensor.dim() < 2 ? 1 : tensor.shape().back();
  Transaction transaction;
  StagedFile& file = transaction.file(target, overwrite);
  uint64_t offset = 0;
  int64_t column = 0;
  Bytes block;
  for (int64_t begin = 0; begin < numbers.numel(); begin += block_elements) {
    check_interrupt();
    const int64_t count = std::min(block_elements, numbers.numel() - begin);
    block.resize(static_cast<size_t>(count) * size);
    numbers.read(begin, block);
    std::string text;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      append_number(text, block.data() + i * size);
      column = column + 1 == columns ? 0 : column + 1;
      text += column == 0 ? '\n' : ',';
    }
    file.write(offset, as_bytes(text));
    offset += text.size();
  }
  std::unordered_set<const Expression*> seen;
  verify_sources(*numbers.expression(), &Storage::verify_whole, seen);
  transaction.commit(false);
}

}  // namespace cbk
