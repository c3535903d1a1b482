#include "host/tensor/unpack.hpp"

#include <algorithm>
#include <cstring>

#include "host/base/scratch.hpp"

namespace cbk {
namespace {

constexpr uint32_t word_bytes = 4;

int64_t codes_of(DType dtype, int bits) {
  return int64_t{8} * size_of(dtype) / bits;
}

void check(const Tensor& tensor, const Packing& packing) {
  if (!is_integer(tensor.dtype()) || size_of(tensor.dtype()) > word_bytes)
    fail(Errc::dtype, "cannot unpack {}: expected integers of 8, 16 or 32 bits", name_of(tensor.dtype()));
  if (packing.bits != 1 && packing.bits != 2 && packing.bits != 4)
    fail(Errc::value, "codes of {} bits; expected 1, 2 or 4", packing.bits);
  if (packing.values.size() != size_t{1} << packing.bits)
    fail(Errc::value, "expected {} values for codes of {} bits, found {}", 1 << packing.bits, packing.bits,
         packing.values.size());
  const int64_t codes = codes_of(tensor.dtype(), packing.bits);
  const auto is_outside = [&](int place) { return place < 0 || place >= codes; };
  if (std::ssize(packing.places) != codes || std::ranges::any_of(packing.places, is_outside))
    fail(Errc::value, "expected {} places from 0 to {} for codes of {} bits in {}", codes, codes - 1,
         packing.bits, name_of(tensor.dtype()));
}

/// Elements smaller than a word follow each other in it.
UnpackTables tables_of(DType dtype, const Packing& packing) {
  UnpackTables tables{static_cast<uint32_t>(packing.bits), {}, {}};
  const size_t codes = packing.places.size();
  for (size_t i = 0; i < size_t{32} / tables.bits; ++i) {
    const size_t element = i / codes * 8 * size_of(dtype);
    tables.shifts.at(i) =
        static_cast<uint32_t>(element) + static_cast<uint32_t>(packing.places[i % codes]) * tables.bits;
  }
  std::ranges::copy(packing.values, tables.values.begin());
  return tables;
}

}  // namespace

UnpackExpression::UnpackExpression(ExpressionPtr input, const Packing& packing, int64_t inner)
    : Expression(DType::float32, input->numel() * codes_of(input->dtype(), packing.bits)),
      input_(std::move(input)),
      codes_(codes_of(input_->dtype(), packing.bits)),
      inner_(inner),
      tables_(tables_of(input_->dtype(), packing)) {}

Losses UnpackExpression::read(int64_t begin, std::span<std::byte> out) const {
  if (reinterpret_cast<uintptr_t>(out.data()) % alignof(float) == 0)
    return inner_ == 1 ? read_elements(begin, out) : read_planes(begin, out);
  Scratch numbers(out.size());
  const Losses lost = read(begin, numbers.bytes());
  std::memcpy(out.data(), numbers.data(), out.size());
  return lost;
}

void UnpackExpression::unpack(const std::byte* elements, int64_t count, float* out) const {
  const uint32_t item = input_->itemsize();
  const int64_t words = count * item / word_bytes;
  unpack_words(elements, static_cast<size_t>(words), tables_, out);
  const int64_t done = words * word_bytes / item;
  if (done == count) return;
  std::array<std::byte, word_bytes> last{};
  std::array<float, 32> numbers{};
  std::memcpy(last.data(), elements + done * item, static_cast<size_t>(count - done) * item);
  unpack_words(last.data(), 1, tables_, numbers.data());
  std::copy_n(numbers.begin(), (count - done) * codes_, out + done * codes_);
}

Losses UnpackExpression::read_elements(int64_t begin, std::span<std::byte> out) const {
  const int64_t end = begin + static_cast<int64_t>(out.size() / sizeof(float));
  const int64_t first = begin / codes_;
  const int64_t last = (end + codes_ - 1) / codes_;
  Scratch elements(static_cast<size_t>(last - first) * input_->itemsize());
  const Losses lost = input_->read(first, elements.bytes());
  if (begin == first * codes_ && end == last * codes_) {
    unpack(elements.data(), last - first, reinterpret_cast<float*>(out.data()));
    return lost;
  }
  Scratch numbers(static_cast<size_t>((last - first) * codes_) * sizeof(float));
  unpack(elements.data(), last - first, reinterpret_cast<float*>(numbers.data()));
  std::memcpy(out.data(), numbers.data() + static_cast<size_t>(begin - first * codes_) * sizeof(float),
              out.size());
  return lost;
}

/// Elements are read once for all of their codes in the range, several rows at a time. Of long rows, and for
/// few numbers, only those elements are read that have them.
Losses UnpackExpression::read_planes(int64_t begin, std::span<std::byte> out) const {
  constexpr int64_t most_elements = 128LL * 1024;
  const int64_t end = begin + static_cast<int64_t>(out.size() / sizeof(float));
  const int64_t row = codes_ * inner_;  // numbers of a row of elements
  auto* numbers = reinterpret_cast<float*>(out.data());
  Losses lost;
  for (int64_t position = begin; position < end;) {
    int64_t first = position / row * inner_ + position % inner_;
    int64_t stop = std::min(end, position + std::min(inner_ - position % inner_, most_elements));
    int64_t width = stop - position;  // elements
    if (inner_ <= most_elements && stop < end) {
      const int64_t rows = std::min((end - 1) / row - position / row + 1, most_elements / inner_);
      first = position / row * inner_;
      width = rows * inner_;
      stop = std::min(end, (position / row + rows) * row);
    }
    Scratch elements(static_cast<size_t>(width) * input_->itemsize());
    lost += input_->read(first, elements.bytes());
    while (position < stop) {
      const auto code = static_cast<size_t>(position / inner_ % codes_);
      const int64_t at = position / row * inner_ + position % inner_ - first;
      const int64_t count = std::min(inner_ - position % inner_, stop - position);
      unpack_codes(elements.data() + at * input_->itemsize(), input_->itemsize(), static_cast<size_t>(count),
                   tables_.shifts[code], tables_, numbers);
      numbers += count;
      position += count;
    }
  }
  return lost;
}

int64_t UnpackExpression::granularity() const {
  if (inner_ > 1) return codes_ * inner_;
  const int64_t grain = input_->granularity();
  return grain > 1 ? grain * codes_ : 1;
}

bool UnpackExpression::drop(int64_t begin, int64_t end) const noexcept {
  const int64_t row = codes_ * inner_;
  return input_->drop(begin / row * inner_, (end + row - 1) / row * inner_);
}

std::string UnpackExpression::parameters() const {
  return fmt::format("unpack {} {} {} {}", inner_, tables_.bits, fmt::join(tables_.shifts, ","),
                     fmt::join(tables_.values, ","));
}

Tensor unpacked(const Tensor& tensor, const Packing& packing, int64_t dim) {
  check(tensor, packing);
  const int64_t position = dim < 0 ? dim + tensor.dim() : dim;
  if (position < 0 || position >= tensor.dim())
    fail(Errc::shape, "dim {} does not exist: the tensor has {}", dim, tensor.dim());
  Shape shape = tensor.shape();
  int64_t& extent = shape[static_cast<size_t>(position)];
  if (__builtin_mul_overflow(extent, codes_of(tensor.dtype(), packing.bits), &extent))
    fail(Errc::shape, "the shape {} is too large to unpack", to_string(tensor.shape()));
  if (numel_of(shape) == 0) return Tensor::full(DType::float32, std::move(shape), 0);
  const int64_t inner = numel_of(Shape(shape.begin() + position + 1, shape.end()));
  return Tensor::from_expression(std::make_shared<UnpackExpression>(tensor.expression(), packing, inner),
                                 shape);
}

}  // namespace cbk
