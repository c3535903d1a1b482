// A lazy tensor: dtype, shape and an expression that can produce any range of its elements.
//
// Every expression enumerates its elements in C order, so a reshape is free, and a plan can ask any
// expression for any block [begin, end) of elements: nothing is ever materialised whole. Tensors are
// immutable values (a pointer and a shape), cheap to copy and safe to use from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/base/bytes.hpp"
#include "host/tensor/dtype.hpp"
#include "host/tensor/storage.hpp"

namespace cbk {

using Shape = std::vector<int64_t>;

/// Product of the extents; a negative extent or an overflow is a `shape` error.
int64_t numel_of(const Shape& shape);
Shape contiguous_strides(const Shape& shape);
std::string to_string(const Shape& shape);  // "[2, 3]"

/// A storage seen as an array: element (i0, i1, …) is at offset + Σ i·stride, all in elements of `dtype`.
struct View {
  StoragePtr storage;
  DType dtype = DType::float32;
  int64_t offset = 0;
  Shape shape;
  Shape strides;  // may be 0 (expanded) or overlap
};

class Expression;  // host/tensor/expression.hpp

class Tensor {
 public:
  Tensor() = default;
  /// Checks that every element is inside the storage (`format` error otherwise).
  static Tensor from_view(View view);
  /// Dense elements in memory.
  static Tensor from_bytes(DType dtype, Shape shape, Bytes bytes);
  static Tensor full(DType dtype, Shape shape, double value);
  /// As `full`, with the element's exact bytes (int64 beyond 2^53, complex).
  static Tensor full_bytes(DType dtype, Shape shape, ByteView element);
  /// Normal(mean, std) numbers from a counter-based generator: the same for any block order. float32 or
  /// float64.
  static Tensor normal(DType dtype, Shape shape, double mean, double std, uint64_t seed);
  /// Uniform numbers from [low, high), likewise.
  static Tensor uniform(DType dtype, Shape shape, double low, double high, uint64_t seed);
  /// `expression` seen with a shape of the same number of elements.
  static Tensor from_expression(std::shared_ptr<const Expression> expression, Shape shape);
  /// Ones on and below the main diagonal of the last two dimensions, else zero.
  static Tensor lower_triangle(DType dtype, Shape shape);

  [[nodiscard]] DType dtype() const { return dtype_; }
  [[nodiscard]] const Shape& shape() const;
  [[nodiscard]] int64_t numel() const { return numel_; }
  [[nodiscard]] uint64_t nbytes() const { return static_cast<uint64_t>(numel_) * size_of(dtype_); }
  [[nodiscard]] int64_t dim() const { return static_cast<int64_t>(shape().size()); }
  explicit operator bool() const { return expression_ != nullptr; }

  // --- expressions; errors are `shape`, `dtype` or `value`. A dim may be negative: from the end.
  [[nodiscard]] Tensor reshape(Shape shape) const;  // one extent may be -1
  [[nodiscard]] Tensor permute(const std::vector<int64_t>& dims) const;
  [[nodiscard]] Tensor transpose(int64_t a, int64_t b) const;
  [[nodiscard]] Tensor slice(int64_t dim, int64_t start, int64_t stop,
                             int64_t step = 1) const;  // clamped, as in Python
  [[nodiscard]] Tensor expand(const Shape& shape) const;
  [[nodiscard]] Tensor flip(int64_t dim) const;
  /// Rows `indices` along `dim`, in that order.
  [[nodiscard]] Tensor index_select(int64_t dim, std::vector<int64_t> indices) const;
  [[nodiscard]] Tensor cast(DType dtype) const;
  /// The same bytes as unsigned integers of the element's size. Errors: `dtype` of complex elements.
  [[nodiscard]] Tensor bits() const;
  /// The same bytes as elements of another dtype of this size. Errors: `dtype`.
  [[nodiscard]] Tensor bits(DType dtype) const;
  /// this · factor + term, computed in float32 (float64 for float64). The arithmetic of `affine`, `add` and
  /// `multiply` on narrower floats is rounded once, at the end of all of it.
  [[nodiscard]] Tensor affine(double factor, double term) const;
  /// NaN elements become `value`.
  [[nodiscard]] Tensor replace_nan(double value) const;
  /// The same elements; reading one that is NaN or infinite is a `value` error that begins with `what`.
  [[nodiscard]] Tensor require_finite(std::string what) const;
  [[nodiscard]] Tensor add(const Tensor& other) const;       // same shape and dtype
  [[nodiscard]] Tensor multiply(const Tensor& other) const;  // same shape and dtype
  /// (m, k) × (k, n), accumulated in float32 (float64 for float64).
  [[nodiscard]] Tensor matmul(const Tensor& other) const;
  static Tensor concat(const std::vector<Tensor>& parts, int64_t dim);
  static Tensor stack(const std::vector<Tensor>& parts, int64_t dim);

  // --- inspecting
  /// The strided view, if this is one storage seen through strides (no arithmetic); formats use it to keep
  /// sharing.
  [[nodiscard]] const View* view() const;
  /// How the elements are stored, if this is a storage with an encoding, unchanged and whole.
  [[nodiscard]] const Encoding* encoding() const;
  /// The one repeated element, if this was made by `full`.
  [[nodiscard]] std::optional<Bytes> fill() const;
  [[nodiscard]] const std::shared_ptr<const Expression>& expression() const { return expression_; }
  /// Casts that lose information and storages that would be read, below this tensor.
  struct Cost {
    uint64_t bytes_read = 0;
    bool lossy = false;
  };
  [[nodiscard]] Cost cost() const;
  /// Same storage, dtype, shape, strides and offset (or the same expression).
  [[nodiscard]] bool same_data(const Tensor& other) const;

  // --- reading, in C order
  /// Elements [begin, begin + out.size()/itemsize) into `out`.
  void read(int64_t begin, std::span<std::byte> out) const;
  /// The whole tensor; `limit` bytes at most (`value` error), to avoid filling the memory by accident.
  [[nodiscard]] Bytes to_bytes(uint64_t limit = 1ULL << 30) const;

 private:
  Tensor(std::shared_ptr<const Expression> expression, std::shared_ptr<const Shape> shape);
  // Kept small: a checkpoint may have 100,000 tensors, and a plan has copies.
  DType dtype_ = DType::float32;
  bool is_source_ = false;  // made by from_view, unchanged since
  int64_t numel_ = 0;
  std::shared_ptr<const Shape> shape_;  // that of the view, if there is one
  std::shared_ptr<const Expression> expression_;
};

}  // namespace cbk
