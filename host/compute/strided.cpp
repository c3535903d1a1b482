#include "host/compute/strided.hpp"

#include <algorithm>
#include <cstring>

#include "host/base/error.hpp"

namespace cbk::compute {
namespace {

/// A position in a view's C order that advances by runs of the last dimension.
class Walker {
 public:
  Walker(const Operand& view, int64_t begin) : view_(view), index_(view.shape.size(), 0) {
    position_ = view.offset;
    for (size_t i = view.shape.size(); i-- > 0;) {
      index_[i] = begin % view.shape[i];
      begin /= view.shape[i];
      position_ += index_[i] * view.strides[i];
    }
  }

  /// Elements to the end of the last dimension.
  [[nodiscard]] int64_t run() const { return view_.shape.empty() ? 1 : view_.shape.back() - index_.back(); }
  [[nodiscard]] int64_t position() const { return position_; }

  void advance(int64_t count) {
    if (view_.shape.empty()) return;
    size_t i = view_.shape.size() - 1;
    index_[i] += count;
    position_ += count * view_.strides[i];
    while (index_[i] == view_.shape[i] && i > 0) {
      position_ -= index_[i] * view_.strides[i];
      index_[i] = 0;
      --i;
      ++index_[i];
      position_ += view_.strides[i];
    }
  }

 private:
  const Operand& view_;
  std::vector<int64_t> index_;
  int64_t position_ = 0;
};

template <typename T>
void copy_run(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t count) {
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
  } else {
    for (int64_t i = 0; i < count; ++i) to[i * to_stride] = from[i * from_stride];
  }
}

template <typename T, bool is_gather>
void move(const Operand& view, int64_t begin, int64_t count, T* dense) {
  auto* base = reinterpret_cast<T*>(view.buffer->data());
  const int64_t stride = view.shape.empty() ? 1 : view.strides.back();
  Walker walker(view, begin);
  for (int64_t done = 0; done < count;) {
    const int64_t run = std::min(walker.run(), count - done);
    T* at = base + walker.position();
    if constexpr (is_gather) {
      copy_run<T>(at, stride, dense + done, 1, run);
    } else {
      copy_run<T>(dense + done, 1, at, stride, run);
    }
    walker.advance(run);
    done += run;
  }
}

template <bool is_gather>
void move_elements(const Operand& view, int64_t begin, int64_t count, std::byte* dense) {
  if (count == 0) return;  // an empty view has no place to begin at
  switch (size_of(view.dtype)) {
    case 1:
      return move<uint8_t, is_gather>(view, begin, count, reinterpret_cast<uint8_t*>(dense));
    case 2:
      return move<uint16_t, is_gather>(view, begin, count, reinterpret_cast<uint16_t*>(dense));
    case 4:
      return move<uint32_t, is_gather>(view, begin, count, reinterpret_cast<uint32_t*>(dense));
    case 8:
      return move<uint64_t, is_gather>(view, begin, count, reinterpret_cast<uint64_t*>(dense));
    default:
      fail(Errc::dtype, "cannot compute with {}", name_of(view.dtype));
  }
}

bool joins(const std::vector<Operand>& views, size_t dim) {
  return std::all_of(views.begin(), views.end(), [&](const Operand& view) {
    return view.strides[dim] == view.strides[dim + 1] * view.shape[dim + 1];
  });
}

}  // namespace

void collapse(std::vector<Operand>& views) {
  if (views.empty()) return;
  const auto erase = [&](size_t dim) {
    for (Operand& view : views) {
      view.shape.erase(view.shape.begin() + static_cast<int64_t>(dim));
      view.strides.erase(view.strides.begin() + static_cast<int64_t>(dim));
    }
  };
  for (size_t dim = views[0].shape.size(); dim-- > 0;) {
    if (views[0].shape[dim] == 1) erase(dim);
  }
  for (size_t dim = views[0].shape.size(); dim-- > 1;) {
    if (!joins(views, dim - 1)) continue;
    for (Operand& view : views) view.shape[dim] *= view.shape[dim - 1];
    erase(dim - 1);
  }
}

void gather(const Operand& view, int64_t begin, int64_t count, std::byte* out) {
  move_elements<true>(view, begin, count, out);
}

void scatter(const Operand& view, int64_t begin, int64_t count, const std::byte* from) {
  move_elements<false>(view, begin, count, const_cast<std::byte*>(from));
}

Operand whole(BufferPtr buffer, DType dtype, Shape shape) {
  Shape strides = contiguous_strides(shape);
  return {std::move(buffer), dtype, 0, std::move(shape), std::move(strides)};
}

Operand expanded(const Operand& view, const Shape& shape) {
  Operand out{view.buffer, view.dtype, view.offset, shape, Shape(shape.size(), 0)};
  const bool fits = view.shape.size() <= shape.size();
  const size_t more = fits ? shape.size() - view.shape.size() : 0;
  for (size_t i = 0; fits && i < view.shape.size(); ++i) {
    if (view.shape[i] == shape[i + more]) {
      out.strides[i + more] = view.strides[i];
    } else if (view.shape[i] != 1) {
      fail(Errc::shape, "cannot repeat shape {} to {}", to_string(view.shape), to_string(shape));
    }
  }
  if (!fits) fail(Errc::shape, "cannot repeat shape {} to {}", to_string(view.shape), to_string(shape));
  return out;
}

Shape broadcast(const Shape& a, const Shape& b) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  Shape out = longer;
  const size_t more = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& extent = out[i + more];
    if (extent == 1) {
      extent = shorter[i];
    } else if (shorter[i] != 1 && shorter[i] != extent) {
      fail(Errc::shape, "shapes {} and {} do not fit together", to_string(a), to_string(b));
    }
  }
  return out;
}

}  // namespace cbk::compute
