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
  if (tensor.dim() == 0) fail(Errc::shape, "cannot unpack a tensor without dims");
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

UnpackExpression::UnpackExpression(ExpressionPtr input, const Packing& packing)
    : Expression(DType::float32, input->numel() * codes_of(input->dtype(), packing.bits)),
      input_(std::move(input)),
      codes_(codes_of(input_->dtype(), packing.bits)),
      tables_(tables_of(input_->dtype(), packing)) {}

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

Losses UnpackExpression::read(int64_t begin, std::span<std::byte> out) const {
  const int64_t end = begin + static_cast<int64_t>(out.size() / sizeof(float));
  const int64_t first = begin / codes_;
  const int64_t last = (end + codes_ - 1) / codes_;
  Scratch elements(static_cast<size_t>(last - first) * input_->itemsize());
  const Losses lost = input_->read(first, elements.bytes());
  const bool is_whole = begin == first * codes_ && end == last * codes_;
  if (is_whole && reinterpret_cast<uintptr_t>(out.data()) % alignof(float) == 0) {
    unpack(elements.data(), last - first, reinterpret_cast<float*>(out.data()));
    return lost;
  }
  Scratch numbers(static_cast<size_t>((last - first) * codes_) * sizeof(float));
  unpack(elements.data(), last - first, reinterpret_cast<float*>(numbers.data()));
  std::memcpy(out.data(), numbers.data() + static_cast<size_t>(begin - first * codes_) * sizeof(float),
              out.size());
  return lost;
}

int64_t UnpackExpression::granularity() const {
  const int64_t grain = input_->granularity();
  return grain > 1 ? grain * codes_ : 1;
}

bool UnpackExpression::drop(int64_t begin, int64_t end) const noexcept {
  return input_->drop(begin / codes_, (end + codes_ - 1) / codes_);
}

std::string UnpackExpression::parameters() const {
  return fmt::format("unpack {} {} {}", tables_.bits, fmt::join(tables_.shifts, ","),
                     fmt::join(tables_.values, ","));
}

Tensor unpacked(const Tensor& tensor, const Packing& packing) {
  check(tensor, packing);
  Shape shape = tensor.shape();
  const int64_t codes = codes_of(tensor.dtype(), packing.bits);
  if (__builtin_mul_overflow(shape.back(), codes, &shape.back()))
    fail(Errc::shape, "the shape {} is too large to unpack", to_string(tensor.shape()));
  if (numel_of(shape) == 0) return Tensor::full(DType::float32, std::move(shape), 0);
  return Tensor::from_expression(std::make_shared<UnpackExpression>(tensor.expression(), packing), shape);
}

}  // namespace cbk
