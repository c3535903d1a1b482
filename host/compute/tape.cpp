#include "host/compute/tape.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "host/base/error.hpp"
#include "host/compute/context.hpp"
#include "host/compute/operators.hpp"

namespace cbk::compute {
namespace {

uint64_t next_order() {
  thread_local uint64_t order = 0;
  return ++order;
}

/// Gradients of leaves must not share memory, because a program may change them in place.
class Leaves {
 public:
  explicit Leaves(const Buffer* given) { taken_.insert(given); }

  void add(const VariablePtr& leaf, const VariablePtr& gradient) {
    if (context().team_shares.empty() || leaf->is_own()) return give(leaf, cast(gradient, leaf->dtype()));
    const auto [place, is_new] = places_.emplace(leaf.get(), own_.size());
    if (is_new) {
      leaves_.push_back(leaf);
      own_.push_back(cast(gradient, leaf->dtype()));
    } else {
      VariablePtr& sum = own_[place->second];
      sum = add_tensors(sum, cast(gradient, leaf->dtype()));
    }
  }

  /// What the ranks of a team computed from their parts of the batch becomes the gradient of the whole.
  void finish() {
    const std::vector<VariablePtr> means = team_sum(own_, true);
    for (size_t i = 0; i < leaves_.size(); ++i) give(leaves_[i], means[i]);
  }

 private:
  void give(const VariablePtr& leaf, VariablePtr gradient) {
    if (leaf->grad_mask()) gradient = where(leaf->grad_mask(), gradient, 0.0);
    if (leaf->grad()) {
      leaf->receive_grad(add_tensors(leaf->grad(), gradient));
      return;
    }
    const bool is_own = gradient->operand().is_contiguous() && taken_.insert(gradient->buffer().get()).second;
    leaf->receive_grad(is_own ? gradient : clone(gradient));
  }

  static VariablePtr add_tensors(const VariablePtr& a, const VariablePtr& b) {
    return binary(ElementOp::add, a, b);
  }
  std::unordered_set<const Buffer*> taken_;
  std::vector<VariablePtr> leaves_, own_;  // of a team
  std::unordered_map<const Variable*, size_t> places_;
};

}  // namespace

void Saved::check() const {
  if (variable_->buffer()->version() != version_) {
    fail(Errc::refused,
         "a tensor of shape {} that backward needs was changed in place after it was used; use clone() "
         "before the change, or "
         "an operator that makes a new tensor",
         to_string(variable_->shape()));
  }
}

Node::Node(std::string name, const std::vector<VariablePtr>& inputs, Backward backward)
    : name_(std::move(name)), backward_(std::move(backward)), order_(next_order()) {
  for (const VariablePtr& input : inputs) {
    Edge edge;
    if (input && input->node()) {
      edge.node = input->node();
    } else if (input && input->requires_grad()) {
      edge.leaf = input;
    }
    edges_.push_back(std::move(edge));
  }
}

/// Frees the nodes that only this one keeps in a loop: a chain of 100,000 operators would nest as many
/// destructors.
Node::~Node() {
  std::vector<Edge> open = std::move(edges_);
  while (!open.empty()) {
    const NodePtr node = std::move(open.back().node);
    open.pop_back();
    if (!node || node.use_count() > 1) continue;
    std::move(node->edges_.begin(), node->edges_.end(), std::back_inserter(open));
    node->edges_.clear();
  }
}

bool needs_gradient(const std::vector<VariablePtr>& inputs) {
  if (!context().records_gradients) return false;
  for (const VariablePtr& input : inputs) {
    if (input) input->check_history();
  }
  return std::any_of(inputs.begin(), inputs.end(),
                     [](const VariablePtr& input) { return input && input->requires_grad(); });
}

void run_backward(const VariablePtr& root, VariablePtr gradient) {
  if (!root->requires_grad()) {
    fail(Errc::refused,
         "backward: this tensor does not depend on anything that requires a gradient (or was computed under "
         "no_grad)");
  }
  if (!gradient) {
    if (root->numel() != 1) {
      fail(Errc::refused,
           "backward() without a gradient needs a tensor of one element, not of shape {}: reduce it with "
           "sum() or mean()",
           to_string(root->shape()));
    }
    gradient = full(root->dtype(), root->shape(), 1, root->device());
  }
  if (gradient->shape() != root->shape()) {
    fail(Errc::shape, "backward: the gradient has shape {}, the tensor {}", to_string(gradient->shape()),
         to_string(root->shape()));
  }
  root->check_history();
  common_device({&root, &gradient});
  const Scoped no_grad(context().records_gradients, false);
  gradient = cast(gradient, root->dtype());
  Leaves leaves(gradient->buffer().get());
  if (root->is_leaf()) {
    leaves.add(root, gradient);
    return leaves.finish();
  }
  struct Pending {
    NodePtr node;
    VariablePtr gradient;
  };
  std::map<uint64_t, Pending, std::greater<>> pending;
  pending[root->node()->order_] = {root->node(), std::move(gradient)};
  while (!pending.empty()) {
    auto [node, upstream] = std::move(pending.begin()->second);
    pending.erase(pending.begin());
    if (!node->backward_) {
      fail(Errc::refused,
           "backward was run through this graph before ({}), and its values are gone: compute the tensor "
           "again",
           node->name_);
    }
    const auto backward = std::exchange(node->backward_, nullptr);
    std::vector<VariablePtr> gradients = backward(upstream);
    for (size_t i = 0; i < gradients.size(); ++i) {
      const Node::Edge& edge = node->edges_[i];
      if (!gradients[i]) continue;
      if (edge.leaf) {
        leaves.add(edge.leaf, gradients[i]);
      } else if (edge.node) {
        Pending& next = pending[edge.node->order_];
        next.node = edge.node;
        next.gradient = next.gradient ? binary(ElementOp::add, next.gradient, gradients[i]) : gradients[i];
      }
    }
  }
  leaves.finish();
}

}  // namespace cbk::compute
