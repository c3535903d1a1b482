#include "host/value/rewrite.hpp"

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "host/base/hash.hpp"
#include "host/value/kind.hpp"
#include "host/value/walk.hpp"

namespace cbk {
namespace {

/// One step from the root to a leaf: an entry of `container`.
struct Step {
  Value container;  // of the source; a new one takes its kind
  Value key;        // a position in a list counts from 0
  std::string text;
};
using Steps = std::vector<Step>;

bool ends_with_part(std::string_view path, std::string_view part) {
  if (path == part) return true;
  return path.size() > part.size() && path.ends_with(part) && path[path.size() - part.size() - 1] == '.';
}

bool begins_with_part(std::string_view path, std::string_view part) {
  return path.size() > part.size() && path.starts_with(part) && path[part.size()] == '.';
}

/// The steps to `path`: those of `old` at both ends as far as they fit, and one key for what stands between.
Steps renamed(const Steps& old, std::string_view path) {
  size_t last = old.size();
  std::string_view rest = path;
  bool all = false;
  while (last > 0 && !all && ends_with_part(rest, old[last - 1].text)) {
    --last;
    all = rest.size() == old[last].text.size();
    rest.remove_suffix(all ? rest.size() : old[last].text.size() + 1);
  }
  size_t first = 0;
  while (!all && first < last && begins_with_part(rest, old[first].text)) {
    rest.remove_prefix(old[first].text.size() + 1);
    ++first;
  }
  Steps steps(old.begin(), old.begin() + static_cast<ptrdiff_t>(first));
  if (!all) {
    const Value& container = first < old.size() ? old[first].container : old.back().container;
    steps.push_back({container, Value(rest), std::string(rest)});
  }
  steps.insert(steps.end(), old.begin() + static_cast<ptrdiff_t>(last), old.end());
  return steps;
}

/// A container of the new tree while it grows.
class Node {
 public:
  explicit Node(Value prototype) : prototype_(std::move(prototype)) {}

  /// The container below `step`, made like `prototype` if it is not there yet.
  Node& enter(const Step& step, const Value& prototype, const std::string& path) {
    Child& child = at(step, path);
    if (!child.node && child.is_leaf) {
      fail(Errc::key, "{} would be a value and a container ({})", quote(path), quote(step.text));
    }
    if (!child.node) child.node = std::make_unique<Node>(prototype);
    return *child.node;
  }

  void set_leaf(const Step& step, Value leaf, const std::string& path) {
    Child& child = at(step, path);
    if (child.node || child.is_leaf) fail(Errc::key, "{} would be a value and a container", quote(path));
    child.leaf = std::move(leaf);
    child.is_leaf = true;
  }

  [[nodiscard]] Value build() const {
    return prototype_.is(Value::Kind::dict) ? build_dict(prototype_.as_dict())
                                            : build_sequence(prototype_.as_sequence());
  }

 private:
  struct Child {
    Value key;
    std::unique_ptr<Node> node;
    Value leaf;
    bool is_leaf = false;
  };

  Child& at(const Step& step, const std::string& path) {
    const bool from_list = step.container.is(Value::Kind::sequence) && step.key.is(Value::Kind::integer);
    const bool to_list = prototype_.is(Value::Kind::sequence);
    if (to_list && !from_list) {
      fail(Errc::key, "{} would put the key {} into {}", quote(path), quote(step.text), a_kind(prototype_));
    }
    const auto [found, is_new] = index_.try_emplace(step.text, children_.size());
    if (is_new) {
      children_.push_back({from_list && !to_list ? Value(step.text) : step.key, nullptr, Value(), false});
    }
    return children_[found->second];
  }

  static Value value_of(const Child& child) { return child.node ? child.node->build() : child.leaf; }

  [[nodiscard]] Value build_dict(const Dict& source) const {
    auto dict = std::make_shared<Dict>(source.kind);
    dict->attributes = source.attributes;
    dict->reserve(children_.size());
    for (const Child& child : children_) dict->set(child.key, value_of(child));
    return dict;
  }

  [[nodiscard]] Value build_sequence(const Sequence& source) const {
    auto list = std::make_shared<Sequence>(Sequence{source.kind, {}, source.maxlen, source.type});
    list->items.reserve(children_.size());
    for (const Child& child : children_) list->items.push_back(value_of(child));
    return list;
  }

  Value prototype_;
  std::vector<Child> children_;
  std::unordered_map<std::string, size_t, KeyedHash> index_;
};

class Rewriter {
 public:
  Rewriter(const Value& root, const Rewrite& rules) : rules_(rules), root_(root) {}

  Value run(const Value& root) {
    visit(root);
    return root_.build();
  }

  void visit(const Value& value) {
    if (value.is(Value::Kind::dict) && !value.as_dict().empty()) {
      for (const auto& [key, item] : value.as_dict().entries()) descend(value, key, key_text(key), item);
    } else if (value.is(Value::Kind::sequence) && !value.as_sequence().items.empty()) {
      int64_t position = 0;
      for (const Value& item : value.as_sequence().items) {
        descend(value, Value(position), std::to_string(position), item);
        ++position;
      }
    } else if (!steps_.empty()) {
      place(value);
    }
  }

  Value leaf(const std::string& path, const Value& value) {
    if (!rules_.leaf) return value;
    const void* node = value.identity();
    if (node == nullptr) return rules_.leaf(path, value);
    const auto known = leaves_.find(node);
    if (known != leaves_.end()) return known->second;
    return leaves_.emplace(node, rules_.leaf(path, value)).first->second;
  }

 private:
  void descend(const Value& container, const Value& key, std::string text, const Value& item) {
    const size_t length = path_.size();
    if (!steps_.empty()) path_ += '.';
    path_ += text;
    steps_.push_back({container, key, std::move(text)});
    visit(item);
    steps_.pop_back();
    path_.resize(length);
  }

  void place(const Value& value) {
    std::string path = path_;
    if (rules_.path) {
      auto chosen = rules_.path(path_, value);
      if (!chosen) return;
      path = std::move(*chosen);
    }
    // Without new names a tree keeps even keys such as {"a.b": 1, "a": {"b": 2}}.
    const auto [taken, is_new] = sources_.emplace(path, path_);
    if (!is_new && rules_.path) {
      fail(Errc::key, "two values would be named {}: {} and {}", quote(path), quote(taken->second),
           quote(path_));
    }
    const Steps steps = path == path_ ? steps_ : renamed(steps_, path);
    Node* node = &root_;
    for (size_t i = 0; i + 1 < steps.size(); ++i) node = &node->enter(steps[i], steps[i + 1].container, path);
    node->set_leaf(steps.back(), leaf(path_, value), path);
  }

  const Rewrite& rules_;
  Node root_;
  Steps steps_;
  std::string path_;
  std::unordered_map<std::string, std::string> sources_;  // new path → old path
  std::unordered_map<const void*, Value> leaves_;
};

}  // namespace

Value rewrite(const Value& root, const Rewrite& rules) {
  const bool is_container = root.is(Value::Kind::dict) || root.is(Value::Kind::sequence);
  if (!is_container) return Rewriter(Value::dict(), rules).leaf("", root);
  each_leaf(root, [](const auto&, const auto&) {});  // refuses trees that hold themselves or are too deep
  return Rewriter(root, rules).run(root);
}

}  // namespace cbk
