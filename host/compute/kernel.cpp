#include "host/compute/kernel.hpp"

#include <algorithm>

namespace cbk::compute {
namespace {

/// A buffer's memory as the storage of lazy tensors.
class BufferStorage final : public Storage {
 public:
  explicit BufferStorage(BufferPtr buffer) : buffer_(std::move(buffer)) {}
  [[nodiscard]] uint64_t size() const override { return buffer_->size(); }
  [[nodiscard]] ByteView view() const override {
    if (!buffer_->has_memory()) fail_without_values();  // that of a program which is gone
    return {buffer_->data(), buffer_->size()};
  }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    const ByteView part = view().subspan(offset, out.size());
    std::copy(part.begin(), part.end(), out.begin());
  }

 private:
  BufferPtr buffer_;
};

}  // namespace

bool Operand::is_contiguous() const {
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != stride) return false;
    stride *= shape[i];
  }
  return true;
}

bool Operand::is_same_view(const Operand& other) const {
  if (buffer != other.buffer || dtype != other.dtype || offset != other.offset || shape != other.shape)
    return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != 1 && strides[i] != other.strides[i]) return false;
  }
  return true;
}

Tensor Operand::to_tensor() const {
  return Tensor::from_view({std::make_shared<BufferStorage>(buffer), dtype, offset, shape, strides});
}

}  // namespace cbk::compute
