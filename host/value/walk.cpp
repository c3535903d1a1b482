#include "host/value/walk.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace cbk {
namespace {

class Walker {
 public:
  explicit Walker(const LeafVisitor& visitor) : visitor_(visitor) {}

  void visit(const Value& place) {
    const Value& value = insides(place);
    if (value.is(Value::Kind::dict) && !value.as_dict().empty()) {
      enter(value);
      for (const auto& [key, item] : value.as_dict().entries()) descend(key_text(key), item);
      above_.pop_back();
    } else if (value.is(Value::Kind::sequence) && !value.as_sequence().items.empty()) {
      enter(value);
      size_t position = 0;
      for (const Value& item : value.as_sequence().items) descend(std::to_string(position++), item);
      above_.pop_back();
    } else {
      if (++count_ > max_tree_leaves) fail(Errc::value, "the tree has more than {} leaves", max_tree_leaves);
      visitor_(path_, place);
    }
  }

 private:
  void descend(const std::string& part, const Value& item) {
    const size_t length = path_.size();
    if (length > 0) path_ += '.';
    path_ += part;
    visit(item);
    path_.resize(length);
  }

  void enter(const Value& value) {
    if (above_.size() >= max_tree_depth) {
      fail(Errc::value, "{} is nested deeper than {} levels", quote(path_), max_tree_depth);
    }
    if (std::find(above_.begin(), above_.end(), value.identity()) != above_.end()) {
      fail(Errc::value, "{} holds itself", quote(path_));
    }
    above_.push_back(value.identity());
  }

  std::string path_;
  std::vector<const void*> above_;
  const LeafVisitor& visitor_;
  size_t count_ = 0;
};

class Copier {
 public:
  Value copy(const Value& value, size_t depth = 0) {
    if (!value.is(Value::Kind::dict) && !value.is(Value::Kind::sequence)) return value;
    if (depth >= max_tree_depth)
      fail(Errc::value, "a tree nested deeper than {} levels cannot be copied", max_tree_depth);
    if (auto known = copies_.find(value.identity()); known != copies_.end()) return known->second;
    return value.is(Value::Kind::dict) ? copy_dict(value, depth) : copy_sequence(value, depth);
  }

 private:
  Value copy_dict(const Value& value, size_t depth) {
    const Dict& source = value.as_dict();
    auto target = std::make_shared<Dict>(source.kind);
    copies_.emplace(value.identity(), target);
    target->attributes = copy(source.attributes, depth + 1);
    target->reserve(source.size());
    for (const auto& [key, item] : source.entries()) target->set(key, copy(item, depth + 1));
    return target;
  }

  Value copy_sequence(const Value& value, size_t depth) {
    const Sequence& source = value.as_sequence();
    auto target = std::make_shared<Sequence>(Sequence{source.kind, {}, source.maxlen, source.type});
    copies_.emplace(value.identity(), target);
    target->items.reserve(source.items.size());
    for (const Value& item : source.items) target->items.push_back(copy(item, depth + 1));
    return target;
  }

  std::unordered_map<const void*, Value> copies_;
};

}  // namespace

void each_leaf(const Value& root, const LeafVisitor& visit) {
  Walker(visit).visit(root);
}

Value deep_copy(const Value& value) {
  return Copier().copy(value);
}

void each_container(const Value& root, const std::function<void(const Value&, Edits&)>& visit) {
  std::vector<Value> open = {root};
  std::unordered_set<const void*> seen;
  const auto add = [&](const Value& value) {
    if (value.may_nest() && seen.insert(value.identity()).second) open.push_back(value);
  };
  while (!open.empty()) {
    const Value value = std::move(open.back());
    open.pop_back();
    if (value.is(Value::Kind::dict)) {
      Dict& dict = value.as_dict();
      visit(value, dict.edits);
      add(dict.attributes);
      for (const auto& [key, item] : dict.entries()) add(item);
    } else if (value.is(Value::Kind::sequence)) {
      Sequence& sequence = value.as_sequence();
      visit(value, sequence.edits);
      for (const Value& item : sequence.items) add(item);
    } else if (value.is(Value::Kind::object)) {
      add(value.as_object().state);
    }
  }
}

void make_read_only(const Value& root) {
  each_container(root, [](const Value&, Edits& edits) { edits.are_refused = true; });
}

}  // namespace cbk
