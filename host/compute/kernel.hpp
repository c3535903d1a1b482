// One step of work on buffers. An operator makes a kernel. It runs at once, or it is recorded and replayed
// (host/compute/program.hpp).
#pragma once

#include <memory>
#include <vector>

#include "host/compute/buffer.hpp"
#include "host/tensor/dtype.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk::compute {

/// A buffer seen as an array: element (i0, i1, …) is at offset + Σ i·stride, all in elements of `dtype`.
struct Operand {
  BufferPtr buffer;
  DType dtype = DType::float32;
  int64_t offset = 0;
  Shape shape;
  Shape strides;

  [[nodiscard]] std::byte* bytes() const { return buffer->data() + offset * size_of(dtype); }
  template <typename T>
  [[nodiscard]] T* data() const {
    return reinterpret_cast<T*>(bytes());
  }
  [[nodiscard]] int64_t numel() const { return numel_of(shape); }
  [[nodiscard]] int64_t dim() const { return static_cast<int64_t>(shape.size()); }
  [[nodiscard]] bool is_contiguous() const;
  /// The same elements of the same buffer in the same order.
  [[nodiscard]] bool is_same_view(const Operand& other) const;
  /// The same memory as a lazy tensor, which keeps the memory.
  [[nodiscard]] Tensor to_tensor() const;
};

class Kernel {
 public:
  Kernel(std::vector<Operand> reads, std::vector<Operand> writes)
      : reads_(std::move(reads)), writes_(std::move(writes)) {}
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  virtual ~Kernel() = default;

  /// All buffers must have memory. Errors are about values (an index out of range).
  virtual void run() = 0;

  [[nodiscard]] const std::vector<Operand>& reads() const { return reads_; }
  [[nodiscard]] const std::vector<Operand>& writes() const { return writes_; }

 protected:
  std::vector<Operand> reads_, writes_;
};

using KernelPtr = std::unique_ptr<Kernel>;

}  // namespace cbk::compute
