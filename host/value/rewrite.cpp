#include "host/value/rewrite.hpp"

#include <algorithm>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host/base/hash.hpp"
#include "host/value/kind.hpp"
#include "host/value/leaf_table.hpp"

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

std::shared_ptr<Dict> empty_dict(const Dict& source) {
  auto dict = std::make_shared<Dict>(source.kind);
  dict->attributes = source.attributes;
  return dict;
}

std::shared_ptr<Sequence> empty_list(const Sequence& source) {
  return std::make_shared<Sequence>(Sequence{source.kind, {}, source.maxlen, source.type});
}

/// A container of the new tree while it grows. Its leaves are rows of the old one, for there may be a million
/// of them.
class Node {
 public:
  using LeafOf = std::function<Value(uint32_t row)>;

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

  void set_leaf(const Step& step, uint32_t row, const std::string& path) {
    Child& child = at(step, path);
    if (child.node || child.is_leaf) fail(Errc::key, "{} would be a value and a container", quote(path));
    child.row = row;
    child.is_leaf = true;
  }

  [[nodiscard]] Value build(const LeafOf& leaf_of) const {
    const auto value_of = [&](const Child& child) {
      return child.node ? child.node->build(leaf_of) : leaf_of(child.row);
    };
    if (prototype_.is(Value::Kind::dict)) {
      const std::shared_ptr<Dict> dict = empty_dict(prototype_.as_dict());
      dict->reserve(children_.size());
      for (const Child& child : children_) dict->set(child.key, value_of(child));
      return dict;
    }
    const std::shared_ptr<Sequence> list = empty_list(prototype_.as_sequence());
    list->items.reserve(children_.size());
    for (const Child& child : children_) list->items.push_back(value_of(child));
    return list;
  }

 private:
  struct Child {
    Value key;
    std::unique_ptr<Node> node;
    uint32_t row;
    bool is_leaf;
  };

  Child& at(const Step& step, const std::string& path) {
    const bool from_list = step.container.is(Value::Kind::sequence) && step.key.is(Value::Kind::integer);
    const bool to_list = prototype_.is(Value::Kind::sequence);
    if (to_list && !from_list) {
      fail(Errc::key, "{} would put the key {} into {}", quote(path), quote(step.text), a_kind(prototype_));
    }
    const auto own = static_cast<uint32_t>(children_.size());
    const auto known = index_.find_or_add(KeyedHash()(step.text), own, [&](uint32_t other) {
      return key_text(children_[other].key) == step.text;
    });
    if (known) return children_[*known];
    return children_.emplace_back(from_list && !to_list ? Value(step.text) : step.key, nullptr, 0, false);
  }

  Value prototype_;
  std::deque<Child> children_;
  RowIndex index_;
};

class Rewriter {
 public:
  Rewriter(const Value& root, const Rewrite& rules)
      : rules_(rules), table_(root), is_kept_(table_.size(), true) {}

  Value run(const Value& root) {
    if (rules_.path) choose_paths();
    if (rules_.leaf) make_leaves();
    if (new_paths_.empty()) {
      auto kept = copy(root);
      return kept ? std::move(*kept) : Node(root).build({});
    }
    Node tree(root);
    place_all(tree, root);
    return tree.build([this](uint32_t row) { return leaf(row); });
  }

 private:
  /// Sets which rows are kept, and under which other paths.
  void choose_paths() {
    RowIndex taken;
    for (uint32_t row = 0; row < table_.size(); ++row) {
      const std::string old_path = table_.path(row);
      auto chosen = rules_.path(old_path, old_leaf(row));
      is_kept_[row] = chosen.has_value();
      if (!chosen) continue;
      const auto other = taken.find_or_add(KeyedHash()(*chosen), row,
                                           [&](uint32_t earlier) { return new_path(earlier) == *chosen; });
      if (other) {
        fail(Errc::key, "two values would be named {}: {} and {}", quote(*chosen), quote(table_.path(*other)),
             quote(old_path));
      }
      if (*chosen != old_path) new_paths_.push_back({row, std::move(*chosen)});
    }
  }

  [[nodiscard]] std::string new_path(uint32_t row) const {
    const auto found = std::ranges::lower_bound(new_paths_, row, {}, &NewPath::row);
    return found != new_paths_.end() && found->row == row ? found->path : table_.path(row);
  }

  /// Rules may be scripts, which could change the tree that they are asked about.
  [[noreturn]] static void fail_changed() {
    fail(Errc::usage, "a rule changes the tree that is being rewritten");
  }

  [[nodiscard]] Value old_leaf(uint32_t row) const {
    const Value* value = table_.value(row);
    if (value == nullptr) fail_changed();
    return *value;
  }

  /// Sets `new_leaves_`.
  void make_leaves() {
    std::unordered_map<const void*, Value> shared;  // the new ones by the old ones
    for (uint32_t row = 0; row < table_.size(); ++row) {
      if (!is_kept_[row]) continue;
      const Value value = old_leaf(row);
      const void* node = value.identity();
      const auto known = node == nullptr ? shared.end() : shared.find(node);
      const Value made = known != shared.end() ? known->second : rules_.leaf(table_.path(row), value);
      if (node != nullptr) shared.emplace(node, made);
      if (!made.same(value)) new_leaves_.emplace(row, made);
    }
  }

  [[nodiscard]] Value leaf(uint32_t row) const {
    const auto made = new_leaves_.find(row);
    return made == new_leaves_.end() ? old_leaf(row) : made->second;
  }

  /// The row of a leaf that a walk comes to: they come in the order of the table.
  uint32_t next_row(const Value& value) {
    if (row_ >= table_.size() || table_.value(row_) != &value) fail_changed();
    return row_++;
  }

  // --- where no path changes

  /// Nothing for a value of which nothing is kept.
  std::optional<Value> copy(const Value& value) {
    if (value.is(Value::Kind::dict) && !value.as_dict().empty()) {
      const auto dict = empty_dict(value.as_dict());
      dict->reserve(value.as_dict().size());
      for (const auto& [key, item] : value.as_dict().entries()) {
        if (auto kept = copy(item)) dict->set(key, std::move(*kept));
      }
      return dict->empty() ? std::nullopt : std::optional<Value>(dict);
    }
    if (value.is(Value::Kind::sequence) && !value.as_sequence().items.empty()) {
      const auto list = empty_list(value.as_sequence());
      list->items.reserve(value.as_sequence().items.size());
      for (const Value& item : value.as_sequence().items) {
        if (auto kept = copy(item)) list->items.push_back(std::move(*kept));
      }
      return list->items.empty() ? std::nullopt : std::optional<Value>(list);
    }
    const uint32_t row = next_row(value);
    return is_kept_[row] ? std::optional(leaf(row)) : std::nullopt;
  }

  // --- where some do

  void place_all(Node& tree, const Value& value) {
    const auto descend = [&](const Value& key, const Value& item) {
      steps_.push_back({value, key, key_text(key)});
      place_all(tree, item);
      steps_.pop_back();
    };
    if (value.is(Value::Kind::dict) && !value.as_dict().empty()) {
      for (const auto& [key, item] : value.as_dict().entries()) descend(key, item);
    } else if (value.is(Value::Kind::sequence) && !value.as_sequence().items.empty()) {
      int64_t position = 0;
      for (const Value& item : value.as_sequence().items) descend(Value(position++), item);
    } else {
      const uint32_t row = next_row(value);
      if (is_kept_[row]) place(tree, row);
    }
  }

  void place(Node& tree, uint32_t row) {
    const bool is_renamed = !new_paths_.empty() && new_paths_.front().row == row;
    const std::string path = new_path(row);
    const Steps steps = is_renamed ? renamed(steps_, path) : steps_;
    if (is_renamed) new_paths_.pop_front();
    Node* node = &tree;
    for (size_t i = 0; i + 1 < steps.size(); ++i) node = &node->enter(steps[i], steps[i + 1].container, path);
    node->set_leaf(steps.back(), row, path);
  }

  struct NewPath {
    uint32_t row;
    std::string path;
  };

  const Rewrite& rules_;
  LeafTable table_;
  std::vector<bool> is_kept_;                       // by row
  std::deque<NewPath> new_paths_;                   // by row; what is placed is gone
  std::unordered_map<uint32_t, Value> new_leaves_;  // by row, where they are not the old ones
  uint32_t row_ = 0;                                // of the leaf that is next
  Steps steps_;
};

}  // namespace

Value rewrite(const Value& root, const Rewrite& rules) {
  const bool is_container = root.is(Value::Kind::dict) || root.is(Value::Kind::sequence);
  if (!is_container) return rules.leaf ? rules.leaf("", root) : root;
  const bool is_empty =
      root.is(Value::Kind::dict) ? root.as_dict().empty() : root.as_sequence().items.empty();
  if (is_empty) return Node(root).build({});
  return Rewriter(root, rules).run(root);
}

}  // namespace cbk
