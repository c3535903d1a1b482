#include "host/tensor/tensor.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "host/tensor/counter_random.hpp"
#include "host/tensor/expression.hpp"
#include "host/tensor/kernels/cast.hpp"
#include "host/tensor/number.hpp"

namespace cbk {
namespace {

/// The i-th number of a standard normal sequence (Box-Muller on a counter).
double normal_at(uint64_t seed, int64_t position) {
  const uint64_t pair = scrambled(seed) + static_cast<uint64_t>(position) / 2 * 2;
  const double u = (static_cast<double>(scrambled(pair) >> 11) + 1) * 0x1p-53;
  const double v = static_cast<double>(scrambled(pair + 1) >> 11) * 0x1p-53;
  const double radius = std::sqrt(-2 * std::log(u));
  const double angle = 2 * std::numbers::pi * v;
  return radius * (position % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

uint64_t elements_in(const View& view) {
  return view.storage->size() / size_of(view.dtype);
}

/// Offsets of hostile files must not overflow.
void check_inside(const View& view) {
  const uint64_t available = elements_in(view);
  Wide lowest = view.offset;
  Wide highest = view.offset;
  for (size_t i = 0; i < view.shape.size(); ++i) {
    const Wide reach = static_cast<Wide>(view.shape[i] - 1) * view.strides[i];
    (reach < 0 ? lowest : highest) += reach;
  }
  if (lowest < 0 || highest >= static_cast<Wide>(available)) {
    fail(Errc::format,
         "a tensor of shape {} with strides {} at element {} reaches beyond its storage of {} elements",
         to_string(view.shape), to_string(view.strides), view.offset, available);
  }
}

}  // namespace

int64_t numel_of(const Shape& shape) {
  int64_t count = 1;
  bool is_empty = false;
  for (int64_t extent : shape) {
    if (extent < 0) fail(Errc::shape, "a negative extent in the shape {}", to_string(shape));
    is_empty |= extent == 0;
  }
  if (is_empty) return 0;
  for (int64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count) || count > (int64_t{1} << 58)) {
      fail(Errc::shape, "the shape {} is too large", to_string(shape));
    }
  }
  return count;
}

Shape contiguous_strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) {
    const int64_t extent = std::max<int64_t>(shape[i], 1);
    // Only a shape without elements can overflow, and for that any stride works.
    if (__builtin_mul_overflow(strides[i], extent, &strides[i - 1])) strides[i - 1] = 0;
  }
  return strides;
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Tensor::Tensor(std::shared_ptr<const Expression> expression, std::shared_ptr<const Shape> shape)
    : dtype_(expression->dtype()),
      numel_(expression->numel()),
      shape_(std::move(shape)),
      expression_(std::move(expression)) {
  if (numel_of(*shape_) != numel_) {
    fail(Errc::shape, "{} elements do not fill the shape {}", numel_, to_string(*shape_));
  }
  constexpr int max_depth = 5000;  // reading recurses
  if (expression_->depth() > max_depth) {
    fail(Errc::value, "more than {} operations on one tensor; write it to a file and continue from that",
         max_depth);
  }
  constexpr uint64_t max_reads = 1'000'000;
  if (expression_->reads() > max_reads) {
    fail(Errc::value,
         "an expression that reads its sources more than {} times; write parts of it to a file first",
         max_reads);
  }
}

Tensor Tensor::from_expression(std::shared_ptr<const Expression> expression, Shape shape) {
  return {std::move(expression), std::make_shared<const Shape>(std::move(shape))};
}

const Shape& Tensor::shape() const {
  static const Shape none;
  return shape_ ? *shape_ : none;
}

Tensor Tensor::from_view(View view) {
  if (view.shape.size() != view.strides.size()) {
    fail(Errc::format, "{} extents but {} strides", view.shape.size(), view.strides.size());
  }
  if (numel_of(view.shape) > 0) {
    check_inside(view);
  } else {
    // Nothing is read there, but formats compute with the offset and write it.
    const uint64_t end = std::min<uint64_t>(elements_in(view), std::numeric_limits<int64_t>::max());
    view.offset = std::clamp<int64_t>(view.offset, 0, static_cast<int64_t>(end));
  }
  auto source = std::make_shared<const ViewExpression>(std::move(view));
  Tensor result(source, std::shared_ptr<const Shape>(source, &source->view().shape));
  result.is_source_ = true;
  return result;
}

Tensor Tensor::from_bytes(DType dtype, Shape shape, Bytes bytes) {
  if (static_cast<uint64_t>(numel_of(shape)) * size_of(dtype) != bytes.size()) {
    fail(Errc::shape, "{} bytes do not fill {} elements of {}", bytes.size(), numel_of(shape),
         name_of(dtype));
  }
  Shape strides = contiguous_strides(shape);
  return from_view({memory_storage(std::move(bytes)), dtype, 0, std::move(shape), std::move(strides)});
}

Tensor Tensor::full(DType dtype, Shape shape, double value) {
  Bytes element(size_of(dtype));
  if (is_complex(dtype)) {
    const std::array<double, 2> number = {value, 0};
    cast_elements(DType::complex128, reinterpret_cast<const std::byte*>(number.data()), dtype, element.data(),
                  1);
  } else {
    cast_elements(DType::float64, reinterpret_cast<const std::byte*>(&value), dtype, element.data(), 1);
  }
  return full_bytes(dtype, std::move(shape), element);
}

Tensor Tensor::full_bytes(DType dtype, Shape shape, ByteView element) {
  if (element.size() != size_of(dtype))
    fail(Errc::dtype, "{} bytes are not one {}", element.size(), name_of(dtype));
  const int64_t count = numel_of(shape);
  auto fill = std::make_shared<FillExpression>(dtype, count, Bytes(element.begin(), element.end()));
  return from_expression(std::move(fill), std::move(shape));
}

Tensor Tensor::normal(DType dtype, Shape shape, double mean, double std, uint64_t seed) {
  if (!is_floating(dtype)) fail(Errc::dtype, "normal random numbers of {}", name_of(dtype));
  auto at = [=](int64_t position) { return mean + std * normal_at(seed, position); };
  const int64_t count = numel_of(shape);
  return from_expression(std::make_shared<GeneratedExpression>(dtype, count, at), std::move(shape));
}

Tensor Tensor::uniform(DType dtype, Shape shape, double low, double high, uint64_t seed) {
  if (!is_floating(dtype)) fail(Errc::dtype, "uniform random numbers of {}", name_of(dtype));
  auto at = [=, stream = scrambled(seed)](int64_t position) {
    return low + (high - low) * uniform_at(stream, position);
  };
  const int64_t count = numel_of(shape);
  return from_expression(std::make_shared<GeneratedExpression>(dtype, count, at), std::move(shape));
}

Tensor Tensor::lower_triangle(DType dtype, Shape shape) {
  if (shape.size() < 2) fail(Errc::shape, "a triangle needs two dims, not the shape {}", to_string(shape));
  const int64_t columns = shape.back();
  const int64_t rows = shape[shape.size() - 2];
  auto at = [=](int64_t position) { return position % columns <= position / columns % rows ? 1.0 : 0.0; };
  const int64_t count = numel_of(shape);
  return from_expression(std::make_shared<GeneratedExpression>(dtype, count, at), std::move(shape));
}

// --- arithmetic

Tensor Tensor::cast(DType dtype) const {
  if (dtype == dtype_) return *this;
  check_cast(dtype_, dtype);
  if (auto element = fill()) {
    Bytes converted(size_of(dtype));
    const Losses lost = cast_elements(dtype_, element->data(), dtype, converted.data(), 1);
    if (!lost.any())
      return full_bytes(dtype, shape(), converted);  // else the cast counts them when it is read
  }
  return from_expression(std::make_shared<CastExpression>(expression_, dtype), shape());
}

Tensor Tensor::bits() const {
  if (is_complex(dtype_)) fail(Errc::dtype, "{} elements have no bits as one integer", name_of(dtype_));
  DType to = DType::uint8;
  for (const DType each : {DType::uint16, DType::uint32, DType::uint64}) {
    if (size_of(each) == size_of(dtype_)) to = each;
  }
  return bits(to);
}

Tensor Tensor::bits(DType dtype) const {
  if (size_of(dtype) != size_of(dtype_))
    fail(Errc::dtype, "the bits of {} are not those of {}: expected {} bytes, found {}", name_of(dtype_),
         name_of(dtype), size_of(dtype), size_of(dtype_));
  if (const View* source = view()) {
    View same = *source;
    same.dtype = dtype;
    return from_view(std::move(same));
  }
  return from_expression(std::make_shared<BitsExpression>(expression_, dtype), shape());
}

namespace {

/// Whether arithmetic uses float32 and rounds at the end.
bool is_narrow(DType dtype) {
  return is_floating(dtype) && size_of(dtype) < size_of(DType::float32);
}

/// The operand of arithmetic on a tensor. If the tensor is a result of arithmetic itself, it is not rounded
/// yet.
ExpressionPtr operand(const Tensor& tensor) {
  if (!is_narrow(tensor.dtype())) return tensor.expression();
  const auto* cast = dynamic_cast<const CastExpression*>(tensor.expression().get());
  if (cast != nullptr && cast->purpose() == CastExpression::Purpose::rounding) return cast->input();
  return tensor.cast(DType::float32).expression();
}

/// The result of arithmetic on `tensor`, in its dtype.
Tensor rounded(ExpressionPtr result, const Tensor& tensor) {
  if (is_narrow(tensor.dtype())) {
    result = std::make_shared<CastExpression>(std::move(result), tensor.dtype(),
                                              CastExpression::Purpose::rounding);
  }
  return Tensor::from_expression(std::move(result), tensor.shape());
}

}  // namespace

Tensor Tensor::affine(double factor, double term) const {
  check_arithmetic(dtype_);
  if (factor == 1 && term == 0) return *this;
  const UnaryOp op{UnaryOp::Kind::affine, factor, term};
  return rounded(std::make_shared<UnaryExpression>(operand(*this), op), *this);
}

Tensor Tensor::replace_nan(double value) const {
  if (!is_floating(dtype_)) return *this;
  const UnaryOp op{UnaryOp::Kind::replace_nan, value, 0};
  return from_expression(std::make_shared<UnaryExpression>(expression_, op), shape());
}

Tensor Tensor::require_finite(std::string what) const {
  if (!is_floating(dtype_) && !is_complex(dtype_)) return *this;
  return from_expression(std::make_shared<FiniteExpression>(expression_, std::move(what)), shape());
}

namespace {

void check_pair(const Tensor& a, const Tensor& b, std::string_view what) {
  check_arithmetic(a.dtype());
  if (a.dtype() != b.dtype())
    fail(Errc::dtype, "cannot {} {} and {}", what, name_of(a.dtype()), name_of(b.dtype()));
  if (a.shape() != b.shape())
    fail(Errc::shape, "cannot {} {} and {}", what, to_string(a.shape()), to_string(b.shape()));
}

}  // namespace

Tensor Tensor::add(const Tensor& other) const {
  check_pair(*this, other, "add");
  return rounded(std::make_shared<BinaryExpression>(operand(*this), operand(other), BinaryOp::add), *this);
}

Tensor Tensor::multiply(const Tensor& other) const {
  check_pair(*this, other, "multiply");
  return rounded(std::make_shared<BinaryExpression>(operand(*this), operand(other), BinaryOp::multiply),
                 *this);
}

Tensor Tensor::matmul(const Tensor& other) const {
  check_arithmetic(dtype_);
  if (dtype_ != other.dtype_)
    fail(Errc::dtype, "cannot multiply {} and {}", name_of(dtype_), name_of(other.dtype_));
  if (!is_floating(dtype_)) fail(Errc::dtype, "matmul of {} tensors; cast them first", name_of(dtype_));
  if (dim() != 2 || other.dim() != 2 || this->shape()[1] != other.shape()[0]) {
    fail(Errc::shape, "cannot multiply the matrices {} and {}", to_string(this->shape()),
         to_string(other.shape()));
  }
  Shape shape = {this->shape()[0], other.shape()[1]};
  if (numel_of(shape) == 0 || this->shape()[1] == 0) return full(dtype_, shape, 0);
  return from_expression(std::make_shared<MatmulExpression>(expression_, other.expression_, shape[0],
                                                            this->shape()[1], shape[1]),
                         shape);
}

// --- inspecting and reading

const View* Tensor::view() const {
  return is_source_ ? &static_cast<const ViewExpression&>(*expression_).view() : nullptr;
}

const Encoding* Tensor::encoding() const {
  const View* source = view();
  const bool is_whole = source != nullptr && source->offset == 0 && nbytes() == source->storage->size() &&
                        source->strides == contiguous_strides(source->shape);
  return is_whole ? source->storage->encoding() : nullptr;
}

std::optional<Bytes> Tensor::fill() const {
  const auto* fill = dynamic_cast<const FillExpression*>(expression_.get());
  return fill == nullptr ? std::nullopt : std::optional(fill->element());
}

namespace {

/// A dtype that holds every value of `expression`: values cast to a wider dtype keep their narrower one.
DType held_by(const Expression& expression) {
  const auto* cast = dynamic_cast<const CastExpression*>(&expression);
  if (cast == nullptr) return expression.dtype();
  const DType below = held_by(*cast->input());
  return loses(below, cast->dtype()) ? cast->dtype() : below;
}

void add_cost(const Expression& expression, Tensor::Cost& cost) {
  if (dynamic_cast<const ViewExpression*>(&expression) != nullptr) cost.bytes_read += expression.nbytes();
  if (const auto* cast = dynamic_cast<const CastExpression*>(&expression)) {
    const bool is_conversion = cast->purpose() == CastExpression::Purpose::conversion;
    cost.lossy = cost.lossy || (is_conversion && loses(held_by(*cast->input()), cast->dtype()));
  }
  expression.each_input([&](const Expression& input) { add_cost(input, cost); });
}

}  // namespace

Tensor::Cost Tensor::cost() const {
  Cost cost;
  add_cost(*expression_, cost);
  return cost;
}

bool Tensor::same_data(const Tensor& other) const {
  if (dtype_ != other.dtype_ || shape() != other.shape()) return false;
  if (expression_ == other.expression_) return true;
  const auto* a = dynamic_cast<const ViewExpression*>(expression_.get());
  const auto* b = dynamic_cast<const ViewExpression*>(other.expression_.get());
  if (a == nullptr || b == nullptr || numel_ == 0) return false;
  return a->view().storage == b->view().storage && a->view().offset == b->view().offset &&
         a->view().shape == b->view().shape && a->view().strides == b->view().strides;
}

void Tensor::read(int64_t begin, std::span<std::byte> out) const {
  const auto count = static_cast<int64_t>(out.size() / size_of(dtype_));
  if (begin < 0 || count > numel_ - begin)
    fail(Errc::internal, "elements {} to {} of {}", begin, begin + count, numel_);
  if (count == 0) return;
  expression_->read(begin, out);
  std::unordered_set<const Expression*> seen;
  verify_sources(*expression_, &Storage::verify, seen);
}

Bytes Tensor::to_bytes(uint64_t limit) const {
  if (nbytes() > limit) {
    fail(Errc::value, "a tensor of {} is too large to read at once (the limit is {}); read slices",
         format_size(nbytes()), format_size(limit));
  }
  Bytes bytes(nbytes());
  read(0, bytes);
  return bytes;
}

}  // namespace cbk
