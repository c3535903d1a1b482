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
#include "host/value/tree_memory.hpp"

namespace cbk {
namespace {

/// One step from the root to a leaf: an entry of `container`.
struct Step {
  Value container;  // of the source; a new one takes its kind
  Value key;        // a position in a list counts from 0
  std::string text;
};
using Steps = std::vector<Step>;

/// Whether it is an entry of a dict with dotted keys.
bool is_flat(const Step& step) {
  return step.container.is(Value::Kind::dict) && step.text.find('.') != std::string::npos;
}

bool ends_with_part(std::string_view path, std::string_view part) {
  if (path == part) return true;
  return path.size() > part.size() && path.ends_with(part) && path[path.size() - part.size() - 1] == '.';
}

bool begins_with_part(std::string_view path, std::string_view part) {
  return path.size() > part.size() && path.starts_with(part) && path[part.size()] == '.';
}

/// The steps to `path`: the matching steps of `old` at both ends, and one key for the rest between them. What
/// is put before a leaf's key with dots becomes part of it: a state dict stays flat. Nothing if that depends
/// on the leaves, because `old` leads to a container.
std::optional<Steps> renamed(const Steps& old, std::string_view path, bool is_leaf) {
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
  const bool is_added = !all && first == last;
  if (is_added && !is_leaf && last == old.size()) return std::nullopt;
  Steps steps(old.begin(), old.begin() + static_cast<ptrdiff_t>(first));
  if (is_added && is_leaf && last + 1 == old.size() && is_flat(old.back())) {
    std::string key = fmt::format("{}.{}", rest, old.back().text);
    steps.push_back({old.back().container, Value(key), key});
    return steps;
  }
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

/// A record with other attributes.
Value with_state(const Object& record, Value state) {
  Object made = record;
  made.state = std::move(state);
  made.is_record = true;
  return std::make_shared<Object>(std::move(made));
}

Value empty_like(const Value& container) {
  if (container.is(Value::Kind::object))
    return with_state(container.as_object(), empty_dict(container.as_object().state.as_dict()));
  if (container.is(Value::Kind::dict)) return empty_dict(container.as_dict());
  return empty_list(container.as_sequence());
}

/// A change of the paths of consecutive leaves: `text` replaces their first `cut` bytes.
struct Change {
  uint32_t first_row;
  size_t cut;
  std::string text;

  Change(uint32_t row, std::string_view old_path, std::string_view path) : first_row(row) {
    const auto ends = std::mismatch(old_path.rbegin(), old_path.rend(), path.rbegin(), path.rend());
    cut = static_cast<size_t>(old_path.rend() - ends.first);
    text.assign(path.substr(0, static_cast<size_t>(path.rend() - ends.second)));
  }
  [[nodiscard]] bool is_none() const { return cut == 0 && text.empty(); }
  [[nodiscard]] bool makes(std::string_view path, std::string_view old_path) const {
    return old_path.size() >= cut && path.size() == text.size() + old_path.size() - cut &&
           path.starts_with(text) && path.ends_with(old_path.substr(cut));
  }
  [[nodiscard]] std::string of(std::string_view old_path) const {
    return text + std::string(old_path.substr(cut));
  }
};

class Rewriter {
 public:
  Rewriter(const Value& root, const Rewrite& rules)
      : rules_(rules), table_(root), is_kept_(table_.size(), true) {}

  Value run(const Value& root) {
    if (rules_.path) choose_paths();
    if (rules_.leaf) make_leaves();
    if (std::ranges::all_of(changes_, &Change::is_none)) {
      auto kept = copy(root);
      return kept ? std::move(*kept) : empty_like(root);
    }
    Node tree(root);
    place_all(tree, root, LeafTable::top);
    return build(tree);
  }

 private:
  /// A part of the old tree: a leaf by its row, or a container by its number.
  struct Part {
    uint32_t number;
    bool is_leaf;
  };
  struct Node;
  struct Child {
    Value key;
    std::unique_ptr<Node> node;
    std::optional<Part> part;  // instead of a node
  };
  /// A container of the new tree while it grows.
  struct Node {
    explicit Node(Value like) : prototype(std::move(like)) {}
    Value prototype;
    std::deque<Child> children;
    RowIndex index;
  };

  void charge(uint64_t bytes) {
    if (rules_.memory) within("the changed tree", [&] { rules_.memory->charge(bytes); });
  }
  void charge_text(const Value& key) {
    if (key.is(Value::Kind::string)) charge(TreeMemory::beside(key.as_string()));
  }

  // --- the changes

  /// Determines the rows that are kept, and their new paths.
  void choose_paths() {
    std::vector<uint64_t> hashes;  // of the new paths: 32 bits of each, and its row
    hashes.reserve(table_.size());
    for (uint32_t row = 0; row < table_.size(); ++row) {
      const std::string old_path = table_.path(row);
      const auto chosen = rules_.path(old_path, old_leaf(row));
      is_kept_[row] = chosen.has_value();
      if (!chosen) continue;
      hashes.push_back(static_cast<uint64_t>(KeyedHash()(*chosen)) << 32 | row);
      if (!changes_.empty() && changes_.back().makes(*chosen, old_path)) continue;
      changes_.emplace_back(row, old_path, *chosen);
      charge(sizeof(Change) + TreeMemory::beside(changes_.back().text));
    }
    std::ranges::sort(hashes);
    refuse_equal_paths(hashes);
  }

  void refuse_equal_paths(const std::vector<uint64_t>& hashes) const {
    std::pair<uint32_t, uint32_t> first{UINT32_MAX, 0};  // the first row whose path an earlier one has
    for (size_t i = 1; i < hashes.size(); ++i) {
      const auto row = static_cast<uint32_t>(hashes[i]);
      for (size_t k = i; k-- > 0 && row < first.first && hashes[k] >> 32 == hashes[i] >> 32;) {
        const auto other = static_cast<uint32_t>(hashes[k]);
        if (new_path(other) == new_path(row)) first = {row, other};
      }
    }
    const auto [row, other] = first;
    if (row == UINT32_MAX) return;
    fail(Errc::key, "two values would be named {}: {} and {}", quote(new_path(row)),
         quote(table_.path(other)), quote(table_.path(row)));
  }

  [[nodiscard]] const Change& change_of(uint32_t row) const {
    return *std::prev(std::ranges::upper_bound(changes_, row, {}, &Change::first_row));
  }
  [[nodiscard]] std::string new_path(uint32_t row) const { return change_of(row).of(table_.path(row)); }

  /// Rules may be scripts, which could change the tree during the rewrite.
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

  /// The row of a leaf that a walk reaches: the walk follows the order of the table.
  uint32_t next_row(const Value& value) {
    if (row_ >= table_.size() || table_.value(row_) != &value) fail_changed();
    return row_++;
  }

  /// The first kept row of this part; nothing if there is none.
  [[nodiscard]] std::optional<uint32_t> first_kept(Part part) const {
    const uint32_t begin = part.is_leaf ? part.number : table_.container(part.number).first_row;
    const auto end = is_kept_.begin() + row_after(part);
    const auto kept = std::find(is_kept_.begin() + begin, end, true);
    return kept == end ? std::nullopt : std::optional(static_cast<uint32_t>(kept - is_kept_.begin()));
  }

  /// The part for an item that a walk through a container reaches.
  Part part_of(const Value& item, uint32_t container) const {
    if (row_ >= table_.size()) fail_changed();
    const auto inner = table_.container_around(row_, container);
    if (inner && table_.container(*inner).node.identity() != item.identity()) fail_changed();
    if (!inner && table_.value(row_) != &item) fail_changed();
    return inner ? Part{*inner, false} : Part{row_, true};
  }
  [[nodiscard]] uint32_t row_after(Part part) const {
    return part.is_leaf ? part.number + 1 : table_.container(part.number).row_after;
  }

  template <typename Visit>
  static void each_item(const Value& node, Visit&& visit) {
    const Value& container = insides(node);
    if (container.is(Value::Kind::dict)) {
      for (const auto& [key, item] : container.as_dict().entries()) visit(key, item);
    } else {
      int64_t position = 0;
      for (const Value& item : container.as_sequence().items) visit(Value(position++), item);
    }
  }

  // --- parts in which no path changes

  /// Nothing for a value that is left out completely; the value itself if it is unchanged.
  std::optional<Value> copy(const Value& value) {
    if (const Value& state = insides(value); &state != &value) {
      auto kept = copy(state);
      if (!kept || kept->same(state)) return kept ? std::optional(value) : std::nullopt;
      return with_state(value.as_object(), std::move(*kept));
    }
    if (value.is(Value::Kind::dict) && !value.as_dict().empty()) return copy_dict(value);
    if (value.is(Value::Kind::sequence) && !value.as_sequence().items.empty()) return copy_list(value);
    const uint32_t row = next_row(value);
    return is_kept_[row] ? std::optional(leaf(row)) : std::nullopt;
  }

  std::optional<Value> copy_dict(const Value& value) {
    const Dict& source = value.as_dict();
    std::shared_ptr<Dict> made;
    size_t before = 0;
    for (const auto& [key, item] : source.entries()) {
      auto kept = copy(item);
      if (!made && (!kept || !kept->same(item))) made = first_entries(source, before);
      if (made && kept) {
        charge_text(key);
        made->set(key, std::move(*kept));
      }
      ++before;
    }
    if (!made) return value;
    return made->empty() ? std::nullopt : std::optional<Value>(made);
  }

  std::shared_ptr<Dict> first_entries(const Dict& source, size_t count) {
    charge(source.size() * TreeMemory::entry);
    auto dict = empty_dict(source);
    dict->reserve(source.size());
    auto from = source.entries().begin();
    for (; count > 0; --count, ++from) {
      charge_text(from->first);
      dict->set(from->first, from->second);
    }
    return dict;
  }

  std::optional<Value> copy_list(const Value& value) {
    const std::vector<Value>& items = value.as_sequence().items;
    std::shared_ptr<Sequence> made;
    for (size_t i = 0; i < items.size(); ++i) {
      auto kept = copy(items[i]);
      if (!made && (!kept || !kept->same(items[i]))) {
        charge(items.size() * TreeMemory::item);
        made = empty_list(value.as_sequence());
        made->items.reserve(items.size());
        made->items.assign(items.begin(), items.begin() + static_cast<ptrdiff_t>(i));
      }
      if (made && kept) made->items.push_back(std::move(*kept));
    }
    if (!made) return value;
    return made->items.empty() ? std::nullopt : std::optional<Value>(made);
  }

  // --- parts in which some paths change

  void place_all(Node& tree, const Value& value, uint32_t container) {
    each_item(value, [&](const Value& key, const Value& item) {
      const Part part = part_of(item, container);
      const auto kept = first_kept(part);
      steps_.push_back({value, key, key_text(key)});
      if (!kept || place(tree, part, *kept)) {
        row_ = row_after(part);
      } else {
        place_all(tree, item, part.number);
      }
      steps_.pop_back();
    });
  }

  /// False for a container that must be walked: its leaves change in several ways, or the beginning of their
  /// paths is removed, or something is put before their keys, or there is a container of that path.
  bool place(Node& tree, Part part, uint32_t kept) {
    std::string path;
    for (const Step& step : steps_) path.append(path.empty() ? "" : ".").append(step.text);
    const Change& change = change_of(row_after(part) - 1);
    const bool is_prefix =
        part.is_leaf || !path.empty();  // a key "" at the top adds nothing to the paths below
    if (!is_prefix || change.first_row > kept || change.cut > path.size()) return false;
    const std::string old_path = std::exchange(path, change.of(path));
    const auto found = path == old_path ? std::optional(steps_) : renamed(steps_, path, part.is_leaf);
    if (!found) return false;
    const Steps& steps = *found;
    Node* node = &tree;
    for (size_t i = 0; i + 1 < steps.size(); ++i) {
      Child& child = at(*node, steps[i], path);
      if (child.part && child.part->is_leaf)
        fail(Errc::key, "{} would be a value and a container ({})", quote(path), quote(steps[i].text));
      if (child.part) expand(child);
      if (!child.node) child.node = std::make_unique<Node>(steps[i + 1].container);
      node = child.node.get();
    }
    Child& child = at(*node, steps.back(), path);
    const bool is_taken = child.node || child.part;
    if (is_taken && (part.is_leaf || (child.part && child.part->is_leaf)))
      fail(Errc::key, "{} would be a value and a container", quote(path));
    if (!is_taken) child.part = part;
    return !is_taken;
  }

  /// The child of `node` below `step`, perhaps a new one.
  Child& at(Node& node, const Step& step, const std::string& path) {
    const bool from_list = step.container.is(Value::Kind::sequence) && step.key.is(Value::Kind::integer);
    const bool to_list = node.prototype.is(Value::Kind::sequence);
    if (to_list && !from_list) {
      fail(Errc::key, "{} would put the key {} into {}", quote(path), quote(step.text),
           a_kind(node.prototype));
    }
    const auto own = static_cast<uint32_t>(node.children.size());
    const auto known = node.index.find_or_add(KeyedHash()(step.text), own, [&](uint32_t other) {
      return key_text(node.children[other].key) == step.text;
    });
    return known ? node.children[*known] : add(node, from_list && !to_list ? Value(step.text) : step.key);
  }

  Child& add(Node& node, const Value& key) {
    charge(sizeof(Child) + TreeMemory::entry);
    charge_text(key);
    return node.children.emplace_back(Child{key, nullptr, std::nullopt});
  }

  /// Makes a node of a part, to which others can be added.
  void expand(Child& child) {
    const uint32_t number = child.part->number;
    const LeafTable::Container& container = table_.container(number);
    auto node = std::make_unique<Node>(container.node);
    const uint32_t row = std::exchange(row_, container.first_row);
    each_item(container.node, [&](const Value& key, const Value& item) {
      const Part part = part_of(item, number);
      row_ = row_after(part);
      if (!first_kept(part)) return;
      const auto own = static_cast<uint32_t>(node->children.size());
      node->index.find_or_add(KeyedHash()(key_text(key)), own, [](uint32_t) { return false; });
      add(*node, key).part = part;
    });
    row_ = row;
    child.node = std::move(node);
    child.part.reset();
  }

  Value build(const Node& node) {
    const auto value_of = [&](const Child& child) {
      if (child.node) return build(*child.node);
      if (child.part->is_leaf) return leaf(child.part->number);
      const LeafTable::Container& container = table_.container(child.part->number);
      row_ = container.first_row;
      return *copy(container.node);
    };
    if (const Value& like = insides(node.prototype); like.is(Value::Kind::dict)) {
      const std::shared_ptr<Dict> dict = empty_dict(like.as_dict());
      dict->reserve(node.children.size());
      for (const Child& child : node.children) dict->set(child.key, value_of(child));
      return node.prototype.is(Value::Kind::object) ? with_state(node.prototype.as_object(), dict) : dict;
    }
    const std::shared_ptr<Sequence> list = empty_list(node.prototype.as_sequence());
    list->items.reserve(node.children.size());
    for (const Child& child : node.children) list->items.push_back(value_of(child));
    return list;
  }

  const Rewrite& rules_;
  LeafTable table_;
  std::vector<bool> is_kept_;                       // by row
  std::deque<Change> changes_;                      // of the rows that are kept
  std::unordered_map<uint32_t, Value> new_leaves_;  // by row, where they are not the old ones
  uint32_t row_ = 0;                                // that a walk comes to next
  Steps steps_;
};

}  // namespace

Value rewrite(const Value& root, const Rewrite& rules) {
  const Value& items = insides(root);
  const bool is_container = items.is(Value::Kind::dict) || items.is(Value::Kind::sequence);
  if (!is_container) return rules.leaf ? rules.leaf("", root) : root;
  const bool is_empty =
      items.is(Value::Kind::dict) ? items.as_dict().empty() : items.as_sequence().items.empty();
  if (is_empty) return empty_like(root);
  return Rewriter(root, rules).run(root);
}

}  // namespace cbk
