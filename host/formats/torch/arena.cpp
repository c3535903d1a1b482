#include "host/formats/torch/arena.hpp"
#include "host/value/kind.hpp"

#include <unordered_map>
#include <unordered_set>

namespace cbk::torch {
namespace {

constexpr size_t depth_limit = 1000;
constexpr uint64_t node_bytes = 128;
constexpr size_t key_limit = 256;  // parts of a tuple used as a key, all levels together

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

uint64_t own_bytes(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::string:
      return 16 + value.as_string().size();
    case Value::Kind::bytes:
      return 16 + value.as_bytes().data.size();
    case Value::Kind::integer:
      return 16 + (value.as_integer().fits ? 0 : value.as_integer().digits->size());
    default:
      return 16;
  }
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
        fail(Errc::format, "{} is a dict key", a_kind(key));
      }
      for (const Value& item : key.as_sequence().items) check_key(item, parts);
      break;
    }
    case Value::Kind::dict:
    case Value::Kind::tensor:
      fail(Errc::format, "{} is a dict key", a_kind(key));
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
      if (open_.contains(next.identity())) fail(Errc::format, "{} contains itself", a_kind(next));
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
    size_t next = 0;                // number of the next child
    uint64_t bytes = 16;
  };

  static const Value& next_child(Frame& frame) {
    const size_t i = frame.next++;
    switch (frame.value->kind()) {
      case Value::Kind::sequence:
        return frame.value->as_sequence().items[i];
      case Value::Kind::dict: {
        const Dict& dict = frame.value->as_dict();
        if (i == 2 * dict.size()) return dict.attributes;
        return i % 2 == 0 ? frame.entry->first : (frame.entry++)->second;
      }
      default:
        return frame.value->as_object().state;
    }
  }

  void enter(const Value& value) {
    if (!is_container(value)) return;
    if (path_.size() >= depth_limit) fail(Errc::format, "values are nested deeper than {}", depth_limit);
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
  for (const Value& node : nodes_) clear(node);
}

void Arena::charge(uint64_t bytes) {
  if (bytes > left_) fail(Errc::format, "the pickle's values take too much memory");
  left_ -= bytes;
}

template <typename Node>
Value Arena::keep(std::shared_ptr<Node> node, uint64_t bytes) {
  charge(bytes);
  if (nodes_.size() >= sweep_at_) sweep();
  nodes_.emplace_back(std::move(node));
  return nodes_.back();
}

/// Lets go of containers that nobody else holds. Parents are younger than most of their children, so walking
/// backwards frees whole trees in one pass; the children still stand in `nodes_`, so nothing recurses.
void Arena::sweep() {
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (nodes_[i].is_unshared()) nodes_[i] = Value();
  }
  std::erase_if(nodes_, [](const Value& node) { return node.is_none(); });
  sweep_at_ = std::max<size_t>(4096, 2 * nodes_.size());
}

Value Arena::sequence(Sequence::Kind kind, std::vector<Value> items) {
  const uint64_t bytes = node_bytes + items.size() * sizeof(Value);
  return keep(std::make_shared<Sequence>(Sequence{kind, std::move(items), {}, {}}), bytes);
}

Value Arena::dict(Dict::Kind kind) {
  return keep(std::make_shared<Dict>(kind), node_bytes);
}

Value Arena::object(std::string type, std::string repr, Value state) {
  const uint64_t bytes = node_bytes + type.size() + repr.size();
  return keep(std::make_shared<Object>(Object{std::move(type), std::move(repr), std::move(state), {}}),
              bytes);
}

Value Arena::bytes(std::string_view data, bool is_mutable) {
  charge(node_bytes + data.size());
  return std::make_shared<ByteString>(ByteString{std::string(data), is_mutable});
}

void Arena::set_item(Dict& dict, Value key, Value value) {
  size_t parts = 0;
  check_key(key, parts);
  charge(2 * sizeof(Value) + own_bytes(key));
  dict.set(std::move(key), std::move(value));
}

Value Arena::release(const Value& root) {
  TreeCheck check(left_);
  check.run(root);
  for (const Value& node : nodes_) {
    if (!check.reached(node.identity())) clear(node);
  }
  nodes_.clear();
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

}  // namespace cbk::torch
