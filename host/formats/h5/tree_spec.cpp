#include "host/formats/h5/tree_spec.hpp"

#include <unordered_set>

#include "host/base/hash.hpp"
#include "host/value/json.hpp"
#include "host/value/kind.hpp"

namespace cbk::h5 {
namespace {

using Kind = TreeSpec::Kind;

struct Name {
  Kind kind;
  std::string_view name;
};
constexpr Name names[] = {
    {Kind::dict, "builtins.dict"},
    {Kind::ordered, "collections.OrderedDict"},
    {Kind::list, "builtins.list"},
    {Kind::tuple, "builtins.tuple"},
    {Kind::set, "builtins.set"},
    {Kind::deque, "collections.deque"},
    {Kind::named, "collections.namedtuple"},
};

constexpr uint64_t key_bytes = 128;  // beside the text: in the list, and in what finds it

void collect_keys(const TreeSpec& spec, const std::string& path, bool is_root, MemoryBudget& memory,
                  std::vector<std::string>& out) {
  if (spec.kind == Kind::leaf) {
    memory.charge(path.size() + key_bytes);
    out.push_back(path);
    return;
  }
  for (size_t i = 0; i < spec.children.size(); ++i) {
    const std::string part = spec.keys.empty() ? std::to_string(i) : key_text(spec.keys[i]);
    collect_keys(spec.children[i], is_root ? part : fmt::format("{}.{}", path, part), false, memory, out);
  }
}

}  // namespace

Value parse_python_json(std::string_view text, MemoryBudget& memory) {
  memory.charge(text.size());
  return parse_json(text, {.python = true, .file_size = memory.file_size()});
}

std::vector<std::string> leaf_keys(const TreeSpec& spec, MemoryBudget& memory) {
  std::vector<std::string> keys;
  collect_keys(spec, "", true, memory, keys);
  std::unordered_set<std::string_view, KeyedHash> seen;
  for (const std::string& key : keys) {
    if (!seen.insert(key).second) fail(Errc::format, "two leaves have the key {}", quote(key));
  }
  return keys;
}

Value build_tree(const TreeSpec& spec, const std::function<Value()>& next) {
  switch (spec.kind) {
    case Kind::leaf:
      return next();
    case Kind::dict:
    case Kind::ordered: {
      auto dict = std::make_shared<Dict>(spec.kind == Kind::dict ? Dict::Kind::dict : Dict::Kind::ordered);
      dict->reserve(spec.children.size());
      for (size_t i = 0; i < spec.children.size(); ++i)
        dict->set(spec.keys[i], build_tree(spec.children[i], next));
      return dict;
    }
    default:
      break;
  }
  auto sequence = std::make_shared<Sequence>();
  using enum Sequence::Kind;
  sequence->kind = spec.kind == Kind::list    ? list
                   : spec.kind == Kind::set   ? set
                   : spec.kind == Kind::deque ? deque
                                              : tuple;
  sequence->maxlen = spec.maxlen;
  sequence->type = spec.type;
  sequence->items.reserve(spec.children.size());
  for (const TreeSpec& child : spec.children) sequence->items.push_back(build_tree(child, next));
  return sequence;
}

TreeSpec::Kind container_kind(std::string_view name) {
  for (const Name& known : names) {
    if (known.name == name) return known.kind;
  }
  if (name.starts_with("cerebras") && name.ends_with(".TensorScalarDict")) return Kind::dict;
  if (name == "collections.defaultdict") {
    fail(Errc::unsupported, "the tree holds a defaultdict, whose keys this format does not keep");
  }
  fail(Errc::unsupported, "unknown container type {} in __spec__", quote(name));
}

std::string_view container_name(TreeSpec::Kind kind) {
  for (const Name& known : names) {
    if (known.kind == kind) return known.name;
  }
  fail(Errc::internal, "a leaf has no type");
}

const Value& spec_member(const Value& object, std::string_view name) {
  const Value* found = object.is(Value::Kind::dict) ? object.as_dict().find(name) : nullptr;
  if (found == nullptr) fail(Errc::format, "a node of __spec__ has no '{}'", name);
  return *found;
}

const std::vector<Value>& spec_items(const Value& list, std::string_view what) {
  if (!list.is(Value::Kind::sequence)) fail(Errc::format, "{} of __spec__ is not a list", what);
  return list.as_sequence().items;
}

void set_keys(TreeSpec& spec, const std::vector<Value>& keys) {
  for (const Value& key : keys) {
    using enum Value::Kind;
    if (!key.is(none) && !key.is(boolean) && !key.is(integer) && !key.is(real) && !key.is(string)) {
      fail(Errc::format, "a key of __spec__ is {}", a_kind(key));
    }
  }
  spec.keys = keys;
}

void check_children(const TreeSpec& spec) {
  if (spec.is_map() && spec.keys.size() != spec.children.size()) {
    fail(Errc::format, "__spec__ names {} keys for {} children", spec.keys.size(), spec.children.size());
  }
}

}  // namespace cbk::h5
