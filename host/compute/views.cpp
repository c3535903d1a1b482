// Other shapes of the same elements, and several tensors as one.
#include <algorithm>
#include <numeric>

#include "host/base/error.hpp"
#include "host/compute/context.hpp"
#include "host/compute/operators.hpp"
#include "host/compute/strided.hpp"
#include "host/compute/tape.hpp"

namespace cbk::compute {
namespace {

VariablePtr view_of(const VariablePtr& x, int64_t offset, Shape shape, Shape strides) {
  auto view = std::make_shared<Variable>(
      Operand{x->buffer(), x->dtype(), offset, std::move(shape), std::move(strides)}, x->device());
  view->set_view();
  return view;
}

/// Replaces the extent -1 by the remaining number of elements.
Shape complete(const Shape& from, Shape shape) {
  const Shape asked = shape;
  const auto open = std::find(shape.begin(), shape.end(), -1);
  const int64_t count = numel_of(from);
  if (open != shape.end()) {
    *open = 1;
    if (std::ranges::count(asked, -1) > 1) {
      fail(Errc::shape, "cannot reshape {} to {}: only one extent can be -1", to_string(from),
           to_string(asked));
    }
    const int64_t rest = numel_of(shape);
    if (rest == 0) {
      fail(Errc::shape, "cannot reshape {} to {}: -1 can be any extent beside 0; write it out",
           to_string(from), to_string(asked));
    }
    *open = count / rest;
  }
  if (numel_of(shape) != count) {
    fail(Errc::shape, "cannot reshape {} ({} elements) to {}", to_string(from), count, to_string(asked));
  }
  return shape;
}

}  // namespace

int64_t check_dim(int64_t dim, int64_t dims) {
  if (dim < -dims || dim >= dims) {
    fail(Errc::value, "dim {} does not exist: the tensor has {}; they count from 0, or from -1 backwards",
         dim, dims);
  }
  return dim < 0 ? dim + dims : dim;
}

VariablePtr reshape(const VariablePtr& x, Shape shape) {
  shape = complete(x->shape(), std::move(shape));
  if (shape == x->shape()) return x;
  const VariablePtr dense = contiguous(x);
  Shape strides = contiguous_strides(shape);
  VariablePtr y = view_of(dense, dense->operand().offset, std::move(shape), std::move(strides));
  return recorded("reshape", y, {dense}, [&]() -> Node::Backward {
    return [before = x->shape()](const VariablePtr& g) -> std::vector<VariablePtr> {
      return {reshape(g, before)};
    };
  });
}

VariablePtr permute(const VariablePtr& x, const Dims& dims) {
  if (static_cast<int64_t>(dims.size()) != x->dim()) {
    fail(Errc::value, "permute: {} dims for a tensor of {}", dims.size(), x->dim());
  }
  Shape shape, strides;
  Dims back(dims.size(), -1);
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t dim = check_dim(dims[i], x->dim());
    if (back[dim] != -1) fail(Errc::value, "permute: dim {} is given twice", dim);
    back[dim] = static_cast<int64_t>(i);
    shape.push_back(x->shape()[dim]);
    strides.push_back(x->operand().strides[dim]);
  }
  VariablePtr y = view_of(x, x->operand().offset, std::move(shape), std::move(strides));
  return recorded("permute", y, {x}, [&]() -> Node::Backward {
    return [back](const VariablePtr& g) -> std::vector<VariablePtr> { return {permute(g, back)}; };
  });
}

VariablePtr transpose(const VariablePtr& x, int64_t a, int64_t b) {
  Dims dims(x->shape().size());
  std::iota(dims.begin(), dims.end(), 0);
  std::swap(dims[check_dim(a, x->dim())], dims[check_dim(b, x->dim())]);
  return permute(x, dims);
}

VariablePtr expand(const VariablePtr& x, const Shape& shape) {
  Shape whole_shape = shape;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t own = static_cast<int64_t>(i) - (static_cast<int64_t>(shape.size()) - x->dim());
    if (shape[i] == -1 && own >= 0) whole_shape[i] = x->shape()[own];
  }
  numel_of(whole_shape);  // fails for negative extents, and for too many elements
  const Operand view = expanded(x->operand(), whole_shape);
  VariablePtr y = view_of(x, view.offset, view.shape, view.strides);
  return recorded("expand", y, {x}, [&]() -> Node::Backward {
    return [before = x->shape()](const VariablePtr& g) -> std::vector<VariablePtr> {
      return {sum_to(g, before)};
    };
  });
}

VariablePtr slice(const VariablePtr& x, int64_t dim, int64_t start, int64_t stop, int64_t step) {
  dim = check_dim(dim, x->dim());
  if (step < 1) fail(Errc::value, "slice: the step must be at least 1, not {}", step);
  const int64_t extent = x->shape()[dim];
  const auto clamped = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + extent : at, 0, extent); };
  start = clamped(start);
  stop = std::max(start, clamped(stop));
  step = std::min(step, std::max<int64_t>(1, stop - start));
  Shape shape = x->shape();
  Shape strides = x->operand().strides;
  shape[dim] = (stop - start + step - 1) / step;
  const int64_t offset = x->operand().offset + (shape[dim] > 0 ? start * strides[dim] : 0);
  strides[dim] *= step;
  VariablePtr y = view_of(x, offset, std::move(shape), std::move(strides));
  return recorded("slice", y, {x}, [&]() -> Node::Backward {
    return [=, before = x->shape()](const VariablePtr& g) -> std::vector<VariablePtr> {
      const VariablePtr out = full(g->dtype(), before, 0, g->device());
      copy_into(slice(out, dim, start, stop, step), g);
      return {out};
    };
  });
}

VariablePtr select(const VariablePtr& x, int64_t dim, int64_t index) {
  dim = check_dim(dim, x->dim());
  const int64_t extent = x->shape()[dim];
  if (index < -extent || index >= extent)
    fail(Errc::value, "select: index {} is not in [0, {}) of dim {}", index, extent, dim);
  if (index < 0) index += extent;
  const VariablePtr part = slice(x, dim, index, index + 1, 1);
  return squeeze(part, dim);
}

VariablePtr squeeze(const VariablePtr& x, std::optional<int64_t> dim) {
  Shape shape = x->shape();
  if (dim) {
    const int64_t at = check_dim(*dim, x->dim());
    if (shape[at] == 1) shape.erase(shape.begin() + at);
  } else {
    std::erase(shape, 1);
  }
  Shape strides;
  for (size_t i = 0; i < x->shape().size(); ++i) {
    const bool goes = x->shape()[i] == 1 && (!dim || check_dim(*dim, x->dim()) == static_cast<int64_t>(i));
    if (!goes) strides.push_back(x->operand().strides[i]);
  }
  VariablePtr y = view_of(x, x->operand().offset, std::move(shape), std::move(strides));
  return recorded("squeeze", y, {x}, [&]() -> Node::Backward {
    return [before = x->shape()](const VariablePtr& g) -> std::vector<VariablePtr> {
      return {reshape(g, before)};
    };
  });
}

VariablePtr unsqueeze(const VariablePtr& x, int64_t dim) {
  dim = check_dim(dim, x->dim() + 1);
  Shape shape = x->shape();
  Shape strides = x->operand().strides;
  shape.insert(shape.begin() + dim, 1);
  strides.insert(strides.begin() + dim, 1);
  VariablePtr y = view_of(x, x->operand().offset, std::move(shape), std::move(strides));
  return recorded("unsqueeze", y, {x}, [&]() -> Node::Backward {
    return [before = x->shape()](const VariablePtr& g) -> std::vector<VariablePtr> {
      return {reshape(g, before)};
    };
  });
}

VariablePtr concat(const std::vector<VariablePtr>& parts, int64_t dim) {
  if (parts.empty()) fail(Errc::value, "cat: the list of tensors is empty");
  dim = check_dim(dim, parts[0]->dim());
  Shape shape = parts[0]->shape();
  shape[dim] = 0;
  std::vector<int64_t> ends;
  for (const VariablePtr& part : parts) {
    Shape other = part->shape();
    if (other.size() == shape.size()) {
      shape[dim] += other[dim];
      other[dim] = shape[dim];
    }
    if (other != shape || part->dtype() != parts[0]->dtype()) {
      fail(Errc::shape, "cat along dim {}: {} {} and {} {} do not fit together", dim,
           name_of(parts[0]->dtype()), to_string(parts[0]->shape()), name_of(part->dtype()),
           to_string(part->shape()));
    }
    common_device({&parts[0], &part});
    ends.push_back(shape[dim]);
  }
  VariablePtr y = Variable::empty(parts[0]->dtype(), shape, parts[0]->device());
  {
    const Scoped no_grad(context().records_gradients, false);
    int64_t start = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      copy_into(slice(y, dim, start, ends[i], 1), parts[i]);
      start = ends[i];
    }
  }
  return recorded("cat", y, parts, [&]() -> Node::Backward {
    return [=](const VariablePtr& g) {
      std::vector<VariablePtr> out;
      int64_t start = 0;
      for (const int64_t end : ends) {
        out.push_back(slice(g, dim, start, end, 1));
        start = end;
      }
      return out;
    };
  });
}

VariablePtr stack(const std::vector<VariablePtr>& parts, int64_t dim) {
  if (parts.empty()) fail(Errc::value, "stack: the list of tensors is empty");
  std::vector<VariablePtr> widened;
  for (const VariablePtr& part : parts) {
    if (part->shape() != parts.front()->shape()) {
      fail(Errc::shape, "stack: the tensors must have one shape, not {} and {}",
           to_string(parts.front()->shape()), to_string(part->shape()));
    }
    widened.push_back(unsqueeze(part, dim));
  }
  return concat(widened, dim);
}

}  // namespace cbk::compute
