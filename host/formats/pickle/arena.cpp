#include "host/formats/pickle/arena.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "host/value/kind.hpp"

namespace cbk::pickle {
namespace {

constexpr size_t deepest_read = 1000;
// The memory of a value, with its share of the lists over all values; measured.
constexpr uint64_t value_bytes = sizeof(Value);
constexpr uint64_t node_bytes = 176;
constexpr uint64_t entry_bytes = 2 * value_bytes + 16;  // of a dict
constexpr uint64_t tensor_bytes = 400;
constexpr uint64_t dim_bytes = 48;  // of a tensor: extents, strides, loops
constexpr size_t lately = 64;       // containers
constexpr size_t key_limit = 256;   // parts of a tuple used as a key, all levels together

/// Children of a container, without making a list of them.
size_t child_count(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::sequence:
      return value.as_sequence().items.size();
    case Value::Kind::dict:
      return 2 * value.as_dict().size() + 1;
    case Value::Kind::object:
      return 1;
    default:
      return 0;
  }
}

bool is_container(const Value& value) {
  return value.is(Value::Kind::sequence) || value.is(Value::Kind::dict) || value.is(Value::Kind::object);
}

/// The memory of a value that is not a container, in a tree.
uint64_t own_bytes(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::string:
      return value_bytes + value.as_string().size();
    case Value::Kind::bytes:
      return value_bytes + value.as_bytes().data.size();
    case Value::Kind::integer:
      return value_bytes + (value.as_integer().fits ? 0 : value.as_integer().digits->size());
    case Value::Kind::tensor:
      return value_bytes + tensor_bytes;
    default:
      return value_bytes;
  }
}

/// The memory charged for the items of a container.
uint64_t item_bytes(const Value& node) {
  if (node.is(Value::Kind::sequence)) return node.as_sequence().items.size() * value_bytes;
  return node.is(Value::Kind::dict) ? node.as_dict().size() * entry_bytes : 0;
}

uint64_t saturating_add(uint64_t a, uint64_t b) {
  return a + b < a ? ~uint64_t{0} : a + b;
}

void check_key(const Value& key, size_t& parts) {
  if (++parts > key_limit) fail(Errc::format, "a dict key of more than {} parts", key_limit);
  switch (key.kind()) {
    case Value::Kind::sequence: {
      const auto kind = key.as_sequence().kind;
      if (kind != Sequence::Kind::tuple && kind != Sequence::Kind::frozenset &&
          kind != Sequence::Kind::torch_size) {
        fail(Errc::format, "{} cannot be a dict key", a_kind(key));
      }
      for (const Value& item : key.as_sequence().items) check_key(item, parts);
      break;
    }
    case Value::Kind::dict:
    case Value::Kind::tensor:
      fail(Errc::format, "{} cannot be a dict key", a_kind(key));
    default:
      break;
  }
}

/// Depth-first over a tree of shared containers with a stack of its own: finds cycles, depth and the size as
/// a tree.
class TreeCheck {
 public:
  explicit TreeCheck(uint64_t budget) : budget_(budget) {}

  void run(const Value& root) {
    enter(root);
    while (!path_.empty()) {
      Frame& frame = path_.back();
      if (frame.next == child_count(*frame.value)) {
        leave();
        continue;
      }
      const Value& next = next_child(frame);
      if (!is_container(next)) {
        frame.bytes = saturating_add(frame.bytes, own_bytes(next));
        continue;
      }
      if (open_.contains(next.identity())) {
        cut(frame, next);
        continue;
      }
      if (auto known = sizes_.find(next.identity()); known != sizes_.end()) {
        frame.bytes = saturating_add(frame.bytes, known->second);
        check_size(frame.bytes);
      } else {
        enter(next);
      }
    }
  }

  [[nodiscard]] bool reached(const void* identity) const { return sizes_.contains(identity); }

 private:
  struct Frame {
    const Value* value;
    Dict::Entries::Iterator entry;  // of a dict: the next one
    const Value* key = nullptr;     // of a dict: the last one
    size_t next = 0;                // number of the next child
    uint64_t bytes = node_bytes;
  };

  static const Value& next_child(Frame& frame) {
    const size_t i = frame.next++;
    switch (frame.value->kind()) {
      case Value::Kind::sequence:
        return frame.value->as_sequence().items[i];
      case Value::Kind::dict: {
        const Dict& dict = frame.value->as_dict();
        if (i == 2 * dict.size()) return dict.attributes;
        if (i % 2 == 1) return (frame.entry++)->second;
        frame.key = &frame.entry->first;
        return *frame.key;
      }
      default:
        return frame.value->as_object().state;
    }
  }

  /// Replaces the last child of a frame, which contains it. Only descriptions may contain themselves: an
  /// instance often knows the one that owns it.
  void cut(const Frame& frame, const Value& child) {
    const auto owner =
        std::ranges::find(path_, child.identity(), [](const Frame& f) { return f.value->identity(); });
    const bool is_described = std::any_of(owner, path_.end(), [](const Frame& f) {
      return f.value->is(Value::Kind::object) && f.value->as_object().is_inert;
    });
    if (!is_described) fail(Errc::format, "{} contains itself", a_kind(child));
    const Value made = std::make_shared<Object>(Object{"cycle", "which contains this", {}, false, true});
    const Value& holder = *frame.value;
    if (holder.is(Value::Kind::sequence)) {
      holder.as_sequence().items[frame.next - 1] = made;
    } else if (holder.is(Value::Kind::object)) {
      holder.as_object().state = made;
    } else if (frame.next > 2 * holder.as_dict().size()) {
      holder.as_dict().attributes = made;
    } else if (frame.next % 2 == 1) {
      fail(Errc::format, "a dict key contains itself");
    } else {
      holder.as_dict().set(*frame.key, made);
    }
  }

  void enter(const Value& value) {
    if (!is_container(value)) return;
    if (path_.size() >= deepest_read) fail(Errc::format, "values are nested deeper than {}", deepest_read);
    open_.insert(value.identity());
    path_.push_back({&value, {}});
    if (value.is(Value::Kind::dict)) path_.back().entry = value.as_dict().entries().begin();
  }

  void leave() {
    const Frame frame = path_.back();
    path_.pop_back();
    open_.erase(frame.value->identity());
    sizes_[frame.value->identity()] = frame.bytes;
    if (!path_.empty()) path_.back().bytes = saturating_add(path_.back().bytes, frame.bytes);
    check_size(frame.bytes);
  }

  void check_size(uint64_t bytes) const {
    if (bytes > budget_)
      fail(Errc::format, "shared parts of the pickle unfold to more than {}", format_size(budget_));
  }

  uint64_t budget_;
  std::vector<Frame> path_;
  std::unordered_set<const void*> open_;
  std::unordered_map<const void*, uint64_t> sizes_;
};

}  // namespace

Arena::~Arena() {
  for (const Node& node : nodes_) clear(node.value);
  budget_.refund(charged_);
}

void Arena::charge(uint64_t bytes) {
  budget_.charge(bytes);
  charged_ += bytes;
}

void Arena::refund(const Node& node) {
  const uint64_t bytes = node.bytes + item_bytes(node.value);
  budget_.refund(bytes);
  charged_ -= bytes;
}

Value Arena::keep(Value value, uint64_t bytes) {
  charge(bytes + item_bytes(value));
  if (nodes_.size() >= sweep_at_) sweep();
  nodes_.push_back({value, bytes});
  return value;
}

/// Releases containers that nothing else refers to. Parents are younger than most of their children, so
/// walking backwards frees whole trees in one pass. The children are still in `nodes_`, so nothing recurses.
void Arena::sweep() {
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (!nodes_[i].value.is_unshared()) continue;
    refund(nodes_[i]);
    nodes_[i].value = Value();
  }
  std::erase_if(nodes_, [](const Node& node) { return node.value.is_none(); });
  sweep_at_ = std::max<size_t>(4096, 2 * nodes_.size());
}

void Arena::free_since(const void* identity) {
  const size_t last = nodes_.size() - std::min<size_t>(nodes_.size(), lately);
  size_t first = nodes_.size();
  while (first > last && nodes_[first - 1].value.identity() != identity) --first;
  if (first == last) return;
  const auto free = [this](Node& node) {
    if (!node.value.is_unshared()) return;
    refund(node);
    node.value = Value();
  };
  const auto begin = nodes_.begin() + static_cast<ptrdiff_t>(first - 1);
  std::for_each(begin, nodes_.end(),
                free);  // an instance is older than its state, which is older than its items
  nodes_.erase(std::remove_if(begin, nodes_.end(), [](const Node& node) { return node.value.is_none(); }),
               nodes_.end());
}

Value Arena::sequence(Sequence::Kind kind, std::vector<Value> items) {
  return keep(std::make_shared<Sequence>(Sequence{kind, std::move(items), {}, {}}), node_bytes);
}

Value Arena::dict(Dict::Kind kind) {
  return keep(std::make_shared<Dict>(kind), node_bytes);
}

Value Arena::object(std::string type, std::string repr, Value state) {
  const uint64_t bytes = node_bytes + type.size() + repr.size();
  return keep(std::make_shared<Object>(Object{std::move(type), std::move(repr), std::move(state)}), bytes);
}

Value Arena::bytes(std::string data, bool is_mutable) {
  charge(node_bytes + data.size());
  return std::make_shared<ByteString>(ByteString{std::move(data), is_mutable});
}

Value Arena::tensor(std::shared_ptr<const TensorLeaf> leaf) {
  charge(tensor_bytes + leaf->tensor.shape().size() * dim_bytes);
  return leaf;
}

Value Arena::keep_storage(Value storage) {
  return keep(std::move(storage), node_bytes + tensor_bytes);
}

void Arena::set_item(Dict& dict, Value key, Value value) {
  size_t parts = 0;
  check_key(key, parts);
  charge(entry_bytes);
  Value* old = dict.append_or_find(key, value);
  if (old == nullptr) return;
  using Kind = Value::Kind;
  const bool may_be_lost = old->is(Kind::tensor) || old->is(Kind::dict) || old->is(Kind::sequence);
  const bool is_lost = may_be_lost && !old->same(value);
  if (is_lost && replaced_count_++ == 0) {
    first_replaced_ =
        fmt::format("{} is set twice in one dict: the first value, {}, is replaced, as in Python",
                    quote(key_text(key)), a_kind(*old));
  }
  *old = std::move(value);
}

std::string Arena::replaced() const {
  if (replaced_count_ < 2) return first_replaced_;
  return fmt::format("{}; {} more {}", first_replaced_, replaced_count_ - 1,
                     replaced_count_ == 2 ? "value is" : "values are");
}

Value Arena::release(const Value& root) {
  TreeCheck check(budget_.limit());
  check.run(root);
  for (const Node& node : nodes_) {
    if (check.reached(node.value.identity())) continue;
    refund(node);
    clear(node.value);
  }
  nodes_.clear();
  charged_ = 0;  // the tree's, from now on
  return root;
}

void Arena::clear(const Value& node) {
  if (node.is(Value::Kind::sequence)) {
    node.as_sequence().items.clear();
  } else if (node.is(Value::Kind::dict)) {
    node.as_dict() = Dict(node.as_dict().kind);
  } else if (node.is(Value::Kind::object)) {
    node.as_object().state = Value();
  }
}

}  // namespace cbk::pickle
