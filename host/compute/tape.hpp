// Reverse-mode gradients: each recorded operator leaves a node, and backward visits nodes from the last to
// the first. Kernels of gradients are operators as well, so a recorded step contains them too.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "host/compute/variable.hpp"

namespace cbk::compute {

/// A value that a gradient needs later. Errors if it was written in place since.
class Saved {
 public:
  explicit Saved(const VariablePtr& variable)
      : variable_(variable->detached()), version_(variable->buffer()->version()) {}
  [[nodiscard]] const VariablePtr& get() const {
    check();
    return variable_;
  }
  void check() const;

 private:
  VariablePtr variable_;
  uint64_t version_;
};

class Node {
 public:
  /// The gradients of the inputs, from the gradient of the result; nullptr if an input has none.
  using Backward = std::function<std::vector<VariablePtr>(const VariablePtr& gradient)>;

  Node(std::string name, const std::vector<VariablePtr>& inputs, Backward backward);
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node();

 private:
  friend void run_backward(const VariablePtr& root, VariablePtr gradient);
  struct Edge {
    NodePtr node;
    VariablePtr leaf;
  };
  std::string name_;
  std::vector<Edge> edges_;
  Backward backward_;
  uint64_t order_;
};

/// Whether a result of these inputs must be recorded.
bool needs_gradient(const std::vector<VariablePtr>& inputs);

/// Gives `result` a node, if gradients are recorded and an input needs one. `backward` is created only then.
template <typename Make>
VariablePtr recorded(std::string name, VariablePtr result, const std::vector<VariablePtr>& inputs,
                     Make make_backward) {
  if (needs_gradient(inputs))
    result->set_node(std::make_shared<Node>(std::move(name), inputs, make_backward()));
  return result;
}

/// Adds the gradient of `root` to `grad` of every leaf below it. `gradient` may be left out for one element.
/// The graph is freed. Errors: `usage`, `shape`.
void run_backward(const VariablePtr& root, VariablePtr gradient);

}  // namespace cbk::compute
