// The methods of Tensor that move elements without computing: reshape, permute, slice, expand, index, join.
#include <algorithm>
#include <numeric>

#include "host/tensor/expression.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk {
namespace {

size_t checked_dim(int64_t dim, int64_t dims) {
  const int64_t position = dim < 0 ? dim + dims : dim;
  if (position < 0 || position >= dims)
    fail(Errc::shape, "dim {} does not exist: the tensor has {}", dim, dims);
  return static_cast<size_t>(position);
}

/// Strides with which `shape` walks what `from` walks with `strides`; nothing if no strides can express it.
/// Groups of dims with equal element counts are matched from the right; a group must lie evenly in memory.
std::optional<Shape> reshaped_strides(const Shape& from, const Shape& strides, const Shape& shape) {
  Shape result(shape.size(), 1);
  size_t position = shape.size();
  int64_t group = 1;  // elements of the current run of evenly spaced source dims
  int64_t left = 1;   // elements of it that `shape` has not taken yet
  int64_t next_stride = 1;
  for (size_t i = from.size(); i-- > 0;) {
    if (from[i] == 1) continue;
    if (group == 1) next_stride = strides[i];
    group *= from[i];
    left *= from[i];
    size_t above = i;
    while (above > 0 && from[above - 1] == 1) --above;
    const bool ends = above == 0 || strides[above - 1] != from[i] * strides[i];
    if (!ends) continue;
    while (position > 0 && (left > 1 || shape[position - 1] == 1)) {
      --position;
      if (left % shape[position] != 0) return std::nullopt;
      result[position] = next_stride;
      next_stride *= shape[position];
      left /= shape[position];
    }
    if (left != 1) return std::nullopt;
    group = 1;
  }
  return result;
}

/// New dims made of old ones: `source[k]` is the old dim that new dim k walks by `step[k]`, or none
/// (repeated).
struct Rearrangement {
  static constexpr size_t none = SIZE_MAX;
  Shape shape;
  std::vector<size_t> source;
  Shape step;
  Shape start;  // per old dim

  static Rearrangement identity(const Shape& shape) {
    Rearrangement result{shape, std::vector<size_t>(shape.size()), Shape(shape.size(), 1),
                         Shape(shape.size(), 0)};
    std::iota(result.source.begin(), result.source.end(), size_t{0});
    return result;
  }
  [[nodiscard]] Shape strides(const Shape& old) const {
    Shape result(shape.size(), 0);
    for (size_t k = 0; k < shape.size(); ++k) {
      if (source[k] != none) result[k] = old[source[k]] * step[k];
    }
    return result;
  }
  [[nodiscard]] int64_t offset(const Shape& old) const {
    int64_t result = 0;
    for (size_t i = 0; i < start.size(); ++i) result += start[i] * old[i];
    return result;
  }
};

}  // namespace

// --- rearranging

namespace {

Tensor rearrange(const Tensor& tensor, const Rearrangement& how);

/// The parts of a concatenation rearranged one by one; nothing if the joined dim itself is cut or repeated.
std::optional<Tensor> rearrange_parts(const ConcatExpression& concat, const Rearrangement& how) {
  const size_t joined = concat.dim();
  const auto place = std::find(how.source.begin(), how.source.end(), joined);
  if (place == how.source.end() || how.start[joined] != 0) return std::nullopt;
  const auto target = static_cast<size_t>(place - how.source.begin());
  int64_t extent = 0;
  for (const Tensor& part : concat.parts()) extent += part.shape()[joined];
  if (how.step[target] != 1 || how.shape[target] != extent) return std::nullopt;
  std::vector<Tensor> parts;
  for (const Tensor& part : concat.parts()) {
    Rearrangement each = how;
    each.shape[target] = part.shape()[joined];
    parts.push_back(rearrange(part, each));
  }
  return Tensor::concat(parts, static_cast<int64_t>(target));
}

bool has_natural_shape(const ConcatExpression& concat, const Shape& shape) {
  Shape natural = concat.parts()[0].shape();
  natural[concat.dim()] = 0;
  for (const Tensor& part : concat.parts()) natural[concat.dim()] += part.shape()[concat.dim()];
  return natural == shape;
}

/// Whether elements appear several times: they are computed before that.
bool repeats(const Rearrangement& how) {
  for (size_t k = 0; k < how.shape.size(); ++k) {
    if (how.source[k] == Rearrangement::none && how.shape[k] > 1) return true;
  }
  return false;
}

/// Element-wise work and rearranging commute: rearranging is pushed down to where it costs nothing.
Tensor rearrange(const Tensor& tensor, const Rearrangement& how) {
  const ExpressionPtr& expression = tensor.expression();
  if (numel_of(how.shape) == 0) return Tensor::full(tensor.dtype(), how.shape, 0);
  if (const auto* source = dynamic_cast<const ViewExpression*>(expression.get())) {
    const View& view = source->view();
    if (auto strides = reshaped_strides(view.shape, view.strides, tensor.shape())) {
      auto moved = std::make_shared<ViewExpression>(View{
          view.storage, view.dtype, view.offset + how.offset(*strides), how.shape, how.strides(*strides)});
      return Tensor::from_expression(std::move(moved), how.shape);
    }
  }
  if (const auto* fill = dynamic_cast<const FillExpression*>(expression.get())) {
    return Tensor::full_bytes(tensor.dtype(), how.shape, fill->element());
  }
  if (const auto* cast = dynamic_cast<const CastExpression*>(expression.get());
      cast != nullptr && !(repeats(how) && cast->purpose() == CastExpression::Purpose::conversion)) {
    const Tensor input = rearrange(Tensor::from_expression(cast->input(), tensor.shape()), how);
    if (cast->purpose() == CastExpression::Purpose::conversion) return input.cast(tensor.dtype());
    return Tensor::from_expression(
        std::make_shared<CastExpression>(input.expression(), tensor.dtype(), cast->purpose()), how.shape);
  }
  if (const auto* element = dynamic_cast<const UnaryExpression*>(expression.get());
      element != nullptr && !repeats(how)) {
    const Tensor input = rearrange(Tensor::from_expression(element->input(), tensor.shape()), how);
    return Tensor::from_expression(std::make_shared<UnaryExpression>(input.expression(), element->op()),
                                   how.shape);
  }
  if (const auto* finite = dynamic_cast<const FiniteExpression*>(expression.get())) {
    const Tensor input = rearrange(Tensor::from_expression(finite->input(), tensor.shape()), how);
    return input.require_finite(finite->what());
  }
  if (const auto* concat = dynamic_cast<const ConcatExpression*>(expression.get())) {
    if (has_natural_shape(*concat, tensor.shape())) {
      if (auto result = rearrange_parts(*concat, how)) return *result;
    }
  }
  const Shape strides = contiguous_strides(tensor.shape());
  auto strided =
      std::make_shared<StridedExpression>(expression, how.offset(strides), how.shape, how.strides(strides));
  return Tensor::from_expression(std::move(strided), how.shape);
}

}  // namespace

Tensor Tensor::reshape(Shape shape) const {
  auto unknown = std::find(shape.begin(), shape.end(), -1);
  if (unknown != shape.end()) {
    const std::string given = to_string(shape);
    if (std::find(unknown + 1, shape.end(), -1) != shape.end())
      fail(Errc::shape, "the shape {} has -1 more than once; one extent can follow from the others", given);
    *unknown = 1;
    const int64_t known = numel_of(shape);
    if (known == 0 || numel_ % known != 0) {
      fail(Errc::shape, "{} elements do not divide by the other extents of {}", numel_, given);
    }
    *unknown = numel_ / known;
  }
  if (shape == this->shape()) return *this;
  return from_expression(expression_, std::move(shape));
}

Tensor Tensor::permute(const std::vector<int64_t>& dims) const {
  Rearrangement how = Rearrangement::identity(shape());
  if (dims.size() != shape().size())
    fail(Errc::shape, "{} dims given to permute the shape {}", dims.size(), to_string(shape()));
  std::vector<bool> seen(dims.size(), false);
  for (size_t k = 0; k < dims.size(); ++k) {
    how.source[k] = checked_dim(dims[k], dim());
    if (seen[how.source[k]]) fail(Errc::shape, "dim {} is repeated in a permutation", dims[k]);
    seen[how.source[k]] = true;
    how.shape[k] = shape()[how.source[k]];
  }
  return rearrange(*this, how);
}

Tensor Tensor::transpose(int64_t a, int64_t b) const {
  std::vector<int64_t> dims(shape().size());
  std::iota(dims.begin(), dims.end(), int64_t{0});
  std::swap(dims[checked_dim(a, dim())], dims[checked_dim(b, dim())]);
  return permute(dims);
}

Tensor Tensor::slice(int64_t dim, int64_t start, int64_t stop, int64_t step) const {
  const size_t position = checked_dim(dim, this->dim());
  const int64_t extent = shape()[position];
  if (step < 1) fail(Errc::value, "a slice step of {}; it must be at least 1 (flip reverses a tensor)", step);
  auto clamped = [&](int64_t bound) {
    return std::clamp<int64_t>(bound < 0 ? bound + extent : bound, 0, extent);
  };
  start = clamped(start);
  stop = std::max(start, clamped(stop));
  if (start == 0 && stop == extent && step == 1) return *this;
  if (const auto* concat = dynamic_cast<const ConcatExpression*>(expression_.get());
      concat != nullptr && concat->dim() == position && step == 1 && stop > start &&
      has_natural_shape(*concat, shape())) {
    std::vector<Tensor> parts;
    int64_t begin = 0;
    for (const Tensor& part : concat->parts()) {
      const int64_t end = begin + part.shape()[position];
      if (begin < stop && end > start) {
        parts.push_back(part.slice(dim, std::max(start, begin) - begin, std::min(stop, end) - begin));
      }
      begin = end;
    }
    return Tensor::concat(parts, dim);
  }
  Rearrangement how = Rearrangement::identity(shape());
  const int64_t length = stop - start;
  how.shape[position] = length / step + (length % step == 0 ? 0 : 1);
  how.step[position] = how.shape[position] > 1 ? step : 1;
  how.start[position] = start;
  return rearrange(*this, how);
}

Tensor Tensor::expand(const Shape& shape) const {
  Rearrangement how = Rearrangement::identity(this->shape());
  if (shape.size() < this->shape().size())
    fail(Errc::shape, "cannot expand {} to {}", to_string(this->shape()), to_string(shape));
  const size_t added = shape.size() - this->shape().size();
  how.shape = shape;
  how.source.assign(shape.size(), Rearrangement::none);
  how.step.assign(shape.size(), 1);
  for (size_t k = added; k < shape.size(); ++k) {
    const size_t old = k - added;
    if (shape[k] == -1) how.shape[k] = this->shape()[old];
    if (this->shape()[old] == how.shape[k]) {
      how.source[k] = old;
    } else if (this->shape()[old] != 1) {
      fail(Errc::shape, "cannot expand {} to {}: only extents of 1 repeat", to_string(this->shape()),
           to_string(shape));
    }
  }
  return rearrange(*this, how);
}

Tensor Tensor::flip(int64_t dim) const {
  const size_t position = checked_dim(dim, this->dim());
  if (numel_ == 0) return *this;
  Rearrangement how = Rearrangement::identity(shape());
  how.step[position] = -1;
  how.start[position] = shape()[position] - 1;
  return rearrange(*this, how);
}

Tensor Tensor::index_select(int64_t dim, std::vector<int64_t> indices) const {
  const size_t position = checked_dim(dim, this->dim());
  const int64_t extent = this->shape()[position];
  for (int64_t index : indices) {
    if (index < 0 || index >= extent)
      fail(Errc::value, "index {} is outside dim {} with {} entries", index, dim, extent);
  }
  Shape shape = this->shape();
  shape[position] = static_cast<int64_t>(indices.size());
  if (numel_of(shape) == 0) return full(dtype_, shape, 0);
  int64_t outer = 1;
  int64_t inner = 1;
  for (size_t i = 0; i < position; ++i) outer *= this->shape()[i];
  for (size_t i = position + 1; i < this->shape().size(); ++i) inner *= this->shape()[i];
  return from_expression(
      std::make_shared<GatherExpression>(expression_, outer, extent, inner, std::move(indices)), shape);
}

// --- joining

Tensor Tensor::concat(const std::vector<Tensor>& parts, int64_t dim) {
  if (parts.empty()) fail(Errc::value, "nothing to concatenate");
  const Tensor& first = parts[0];
  const size_t position = checked_dim(dim, first.dim());
  Shape shape = first.shape();
  shape[position] = 0;
  for (const Tensor& part : parts) {
    Shape same = part.shape();
    if (part.dtype() != first.dtype()) {
      fail(Errc::dtype, "cannot concatenate {} and {}", name_of(first.dtype()), name_of(part.dtype()));
    }
    if (same.size() == shape.size()) {
      const int64_t extent = std::exchange(same[position], shape[position]);
      if (same == shape) {
        if (__builtin_add_overflow(shape[position], extent, &shape[position]))
          fail(Errc::shape, "the concatenation along dim {} is too large", dim);
        continue;
      }
    }
    fail(Errc::shape, "cannot concatenate {} and {} along dim {}", to_string(first.shape()),
         to_string(part.shape()), dim);
  }
  if (numel_of(shape) == 0) return full(first.dtype(), shape, 0);
  std::vector<Tensor> filled;
  for (const Tensor& part : parts) {
    if (part.numel() > 0) filled.push_back(part);
  }
  if (filled.size() == 1) return from_expression(filled[0].expression(), shape);
  return from_expression(std::make_shared<ConcatExpression>(std::move(filled), position), shape);
}

Tensor Tensor::stack(const std::vector<Tensor>& parts, int64_t dim) {
  if (parts.empty()) fail(Errc::value, "nothing to stack");
  const size_t position = checked_dim(dim, parts[0].dim() + 1);
  std::vector<Tensor> raised;
  for (const Tensor& part : parts) {
    if (part.shape() != parts[0].shape()) {
      fail(Errc::shape, "cannot stack {} and {}", to_string(parts[0].shape()), to_string(part.shape()));
    }
    Shape shape = part.shape();
    shape.insert(shape.begin() + static_cast<ptrdiff_t>(position), 1);
    raised.push_back(part.reshape(std::move(shape)));
  }
  return concat(raised, static_cast<int64_t>(position));
}

}  // namespace cbk
