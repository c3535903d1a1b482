// A variable: a tensor with writable values in memory that remembers how it was computed.
//
// Variables are shared by pointer; views share a buffer. Code that makes or changes one runs on one thread
// (Lua's); only kernels use more.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "host/compute/kernel.hpp"

namespace cbk::compute {

class Node;  // host/compute/tape.hpp
using NodePtr = std::shared_ptr<Node>;

/// The device of a variable. On the emulated system its values cannot be read during a step.
enum class Device : uint8_t { cpu, csx };
std::string_view name_of(Device device);

class Variable;
using VariablePtr = std::shared_ptr<Variable>;

class Variable {
 public:
  Variable(Operand operand, Device device) : operand_(std::move(operand)), device_(device) {}

  /// New memory on the device of new variables, uninitialised (while recording: without memory yet).
  static VariablePtr empty(DType dtype, Shape shape);
  static VariablePtr empty(DType dtype, Shape shape, Device device);
  /// The elements of a lazy tensor, read once. In a lazy program it is a variable without elements, for
  /// formulas.
  /// Errors: those of reading; `dtype` if the dtype cannot be computed with.
  static VariablePtr from_tensor(const Tensor& tensor);
  static VariablePtr from_doubles(DType dtype, Shape shape, std::span<const double> values);

  [[nodiscard]] const Operand& operand() const { return operand_; }
  [[nodiscard]] DType dtype() const { return operand_.dtype; }
  [[nodiscard]] const Shape& shape() const { return operand_.shape; }
  [[nodiscard]] int64_t dim() const { return operand_.dim(); }
  [[nodiscard]] int64_t numel() const { return operand_.numel(); }
  [[nodiscard]] Device device() const { return device_; }
  void set_device(Device device) { device_ = device; }
  [[nodiscard]] const BufferPtr& buffer() const { return operand_.buffer; }

  // --- gradients
  [[nodiscard]] bool requires_grad() const { return requires_grad_ || node_ != nullptr; }
  [[nodiscard]] bool is_leaf() const { return node_ == nullptr; }
  /// Errors: `dtype` unless it is a float; `usage` if it is not a leaf.
  void set_requires_grad(bool value);
  [[nodiscard]] const VariablePtr& grad() const { return grad_; }
  void set_grad(VariablePtr grad) { grad_ = std::move(grad); }
  /// The same by `backward`, which is counted.
  void receive_grad(VariablePtr grad) {
    grad_ = std::move(grad);
    if (gradients_received_++ == 0) version_of_first_gradient_ = operand_.buffer->version();
  }
  /// What `backward` gives to this leaf is 0 where the mask is; nullptr: all is given. Of the leaf's shape.
  [[nodiscard]] const VariablePtr& grad_mask() const { return grad_mask_; }
  void set_grad_mask(VariablePtr mask) { grad_mask_ = std::move(mask); }
  /// A leaf with values of this process alone: the ranks of a team do not add up its gradient.
  [[nodiscard]] bool is_own() const { return is_own_; }
  void set_own() { is_own_ = true; }
  [[nodiscard]] uint64_t gradients_received() const { return gradients_received_; }
  /// Counts p - x and p + x of a leaf with a gradient: a step that gives a new tensor its name, and trains
  /// nothing.
  void note_rebound() { rebound_ += grad_ != nullptr && is_leaf() ? 1 : 0; }
  [[nodiscard]] uint64_t rebound_count() const { return rebound_; }
  /// Whether it received a gradient and was written in place after the first one.
  [[nodiscard]] bool is_written_since_gradient() const {
    return gradients_received_ > 0 && operand_.buffer->version() != version_of_first_gradient_;
  }
  [[nodiscard]] const NodePtr& node() const { return node_; }
  /// Whether this is a view of another variable, which is not informed about writes here.
  [[nodiscard]] bool is_view() const { return is_view_; }
  void set_view();
  void set_node(NodePtr node) { node_ = std::move(node); }
  /// Call this after a recorded write in place. Existing views do not get the new node.
  void set_rewritten(NodePtr node);
  /// Errors: `refused` for a view that was taken before such a write.
  void check_history() const;

  /// The same elements without history.
  [[nodiscard]] VariablePtr detached() const;

  // --- reading. Errors: `refused` if the device does not allow it now, or if the values are gone.
  void check_readable() const;
  /// The values as a lazy tensor over this memory: later writes show in it.
  [[nodiscard]] Tensor to_tensor() const;
  /// The first elements as float64 or int64.
  template <typename T>
  [[nodiscard]] std::vector<T> to_values(int64_t most = INT64_MAX) const;
  [[nodiscard]] std::vector<double> to_doubles(int64_t most = INT64_MAX) const {
    return to_values<double>(most);
  }
  [[nodiscard]] double item() const;

 private:
  Operand operand_;
  Device device_;
  bool requires_grad_ = false;
  bool is_view_ = false;
  bool is_own_ = false;
  uint64_t rewrites_ = 0;  // of the buffer, when this view was taken
  VariablePtr grad_;
  VariablePtr grad_mask_;
  uint64_t rebound_ = 0;
  uint64_t gradients_received_ = 0, version_of_first_gradient_ = 0;
  NodePtr node_;
};

}  // namespace cbk::compute
