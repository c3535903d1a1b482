#include "host/formats/h5/tree_spec.hpp"

#include <map>
#include <unordered_set>

#include "host/formats/h5/text.hpp"
#include "host/formats/torch/pickle.hpp"
#include "host/formats/torch/pickler.hpp"
#include "host/value/json.hpp"

namespace cbk::h5 {
namespace {

using Kind = TreeSpec::Kind;

constexpr JsonReadOptions python_json{.python = true};
constexpr std::string_view tree_spec_class = "torch.utils._pytree.TreeSpec";
constexpr std::string_view leaf_spec_class = "torch.utils._pytree.LeafSpec";

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

Kind kind_of(std::string_view name) {
  for (const Name& known : names) {
    if (known.name == name) return known.kind;
  }
  if (name.starts_with("cerebras") && name.ends_with(".TensorScalarDict")) return Kind::dict;
  if (name == "collections.defaultdict") {
    fail(Errc::unsupported, "the tree holds a defaultdict, whose keys this format does not keep");
  }
  fail(Errc::unsupported, "unknown container type {} in __spec__", quote(name));
}

std::string_view name_of(Kind kind) {
  for (const Name& known : names) {
    if (known.kind == kind) return known.name;
  }
  fail(Errc::internal, "a leaf has no type");
}

const Value& member(const Value& object, std::string_view name) {
  const Value* found = object.is(Value::Kind::dict) ? object.as_dict().find(name) : nullptr;
  if (found == nullptr) fail(Errc::format, "a node of __spec__ has no '{}'", name);
  return *found;
}

const std::vector<Value>& items_of(const Value& list, std::string_view what) {
  if (!list.is(Value::Kind::sequence)) fail(Errc::format, "{} of __spec__ is not a list", what);
  return list.as_sequence().items;
}

void set_keys(TreeSpec& spec, const std::vector<Value>& keys) {
  for (const Value& key : keys) {
    using enum Value::Kind;
    if (!key.is(none) && !key.is(boolean) && !key.is(integer) && !key.is(real) && !key.is(string)) {
      fail(Errc::format, "a key of __spec__ is a {}", key.kind_name());
    }
  }
  spec.keys = keys;
}

void check_children(const TreeSpec& spec) {
  if ((spec.kind == Kind::dict || spec.kind == Kind::ordered) && spec.keys.size() != spec.children.size()) {
    fail(Errc::format, "__spec__ names {} keys for {} children", spec.keys.size(), spec.children.size());
  }
}

TreeSpec read_json_node(const Value& node) {
  TreeSpec spec;
  const Value& type = member(node, "type");
  if (type.is_none()) return spec;
  spec.kind = kind_of(type.as_string());
  const Value& context = member(node, "context");
  switch (spec.kind) {
    case Kind::dict:
    case Kind::ordered:
      set_keys(spec, items_of(parse_json(context.as_string(), python_json), "a key list"));
      break;
    case Kind::deque: {
      const Value maxlen = parse_json(context.as_string(), python_json);
      if (!maxlen.is_none()) spec.maxlen = maxlen.as_int();
      break;
    }
    case Kind::named:
      spec.type = context.as_string();
      break;
    default:
      break;
  }
  const auto& children = items_of(member(node, "children_spec"), "children_spec");
  spec.children.reserve(children.size());
  for (const Value& child : children) spec.children.push_back(read_json_node(child));
  check_children(spec);
  return spec;
}

/// "builtins.dict" of a type, however the pickle spells it.
std::string type_name(const Value& type) {
  if (!type.is(Value::Kind::object) || type.as_object().type != "class") {
    fail(Errc::format, "the type of a node of __spec__ is a {}", type.kind_name());
  }
  return type.as_object().repr;
}

TreeSpec read_pickle_node(const Value& node, int depth) {
  if (depth > 500) fail(Errc::format, "__spec__ is nested too deeply");
  const std::string type = node.is(Value::Kind::object) ? node.as_object().type : node.kind_name();
  if (type != tree_spec_class && type != leaf_spec_class)
    fail(Errc::format, "__spec__ holds a {} instead of a TreeSpec", quote(type));
  TreeSpec spec;
  const Value& state = node.as_object().state;
  if (type == leaf_spec_class || member(state, "type").is_none()) return spec;
  spec.kind = kind_of(type_name(member(state, "type")));
  switch (spec.kind) {
    case Kind::dict:
    case Kind::ordered:
      set_keys(spec, items_of(member(state, "context"), "a key list"));
      break;
    case Kind::named:
      spec.type = type_name(member(state, "context"));
      break;
    case Kind::list:
    case Kind::tuple:
      break;
    default:
      fail(Errc::format, "__spec__ holds a {}, which this version cannot have", name_of(spec.kind));
  }
  for (const Value& child : items_of(member(state, "children_specs"), "children_specs")) {
    spec.children.push_back(read_pickle_node(child, depth + 1));
  }
  check_children(spec);
  return spec;
}

void write_node(const TreeSpec& spec, std::string& out) {
  if (spec.kind == Kind::leaf) {
    out += R"({"type": null, "context": null, "children_spec": []})";
    return;
  }
  std::string context = "null";
  if (spec.kind == Kind::dict || spec.kind == Kind::ordered) {
    context = to_json(Value::list(spec.keys), {.ascii = true, .python = true});
  } else if (spec.kind == Kind::deque && spec.maxlen) {
    context = std::to_string(*spec.maxlen);
  } else if (spec.kind == Kind::named) {
    context = spec.type;
  }
  out += R"({"type": ")";
  out += name_of(spec.kind);
  out += R"(", "context": )";
  out += json_quote(context, true);
  out += R"(, "children_spec": [)";
  for (size_t i = 0; i < spec.children.size(); ++i) {
    if (i > 0) out += ", ";
    write_node(spec.children[i], out);
  }
  out += "]}";
}

/// The tree with "*" for leaves as JSON can say it; false if it cannot.
bool make_shape(const TreeSpec& spec, Value& out) {
  if (spec.kind == Kind::leaf) {
    out = "*";
    return true;
  }
  if (spec.kind == Kind::set || spec.kind == Kind::deque) return false;
  const bool is_map = spec.kind == Kind::dict || spec.kind == Kind::ordered;
  out = is_map ? Value::dict() : Value::list();
  for (size_t i = 0; i < spec.children.size(); ++i) {
    Value child;
    if (!make_shape(spec.children[i], child)) return false;
    if (is_map)
      out.as_dict().set(spec.keys[i], child);
    else
      out.as_sequence().items.push_back(child);
  }
  return true;
}

Value make_object(std::string_view type, std::string_view repr, Value state = {}) {
  auto object = std::make_shared<Object>();
  object->type = type;
  object->repr = repr;
  object->state = std::move(state);
  return object;
}

/// Turns a spec into the pickled classes' objects; a class is one object however often it occurs.
class PickleNodes {
 public:
  Value make(const TreeSpec& spec) {
    int64_t leaves = 0;
    return make(spec, leaves);
  }

 private:
  Value make(const TreeSpec& spec, int64_t& leaves) {
    const bool is_leaf = spec.kind == Kind::leaf;
    const bool is_map = spec.kind == Kind::dict || spec.kind == Kind::ordered;
    int64_t below = is_leaf ? 1 : 0;
    Value children = Value::list();
    for (const TreeSpec& child : spec.children) children.as_sequence().items.push_back(make(child, below));
    Value state = Value::dict();
    Dict& members = state.as_dict();
    members.set("type", is_leaf ? Value() : type_of(spec.kind));
    members.set("context", is_map ? Value::list(spec.keys) : Value());
    members.set("children_specs", children);
    members.set("num_leaves", below);
    leaves += below;
    return make_object(is_leaf ? leaf_spec_class : tree_spec_class, "", state);
  }

  const Value& type_of(Kind kind) {
    Value& type = types_[kind];
    if (type.is_none()) type = make_object("class", name_of(kind));
    return type;
  }

  std::map<Kind, Value> types_;
};

void collect_keys(const TreeSpec& spec, const std::string& path, bool is_root,
                  std::vector<std::string>& out) {
  if (spec.kind == Kind::leaf) {
    out.push_back(path);
    return;
  }
  for (size_t i = 0; i < spec.children.size(); ++i) {
    const std::string part = spec.keys.empty() ? std::to_string(i) : key_text(spec.keys[i]);
    collect_keys(spec.children[i], is_root ? part : path + "." + part, false, out);
  }
}

}  // namespace

TreeSpec parse_json_spec(const Value& pair) {
  const auto& parts = items_of(pair, "the value");
  if (parts.size() != 2 || !parts[1].is(Value::Kind::string))
    fail(Errc::format, "__spec__ is not a pair of shape and tree");
  const Value tree = parse_json(parts[1].as_string(), python_json);
  const auto& versioned = items_of(tree, "the tree");
  if (versioned.size() != 2 || !versioned[0].is(Value::Kind::integer))
    fail(Errc::format, "the tree of __spec__ has no protocol number");
  if (versioned[0].as_int() != 1)
    fail(Errc::unsupported, "__spec__ has protocol {}, only 1 is known", versioned[0].as_int());
  return read_json_node(versioned[1]);
}

TreeSpec parse_pickle_spec(std::string_view hex) {
  torch::UnpickleOptions options;
  options.dill = true;
  return read_pickle_node(torch::unpickle(from_hex(hex), options), 0);
}

std::string to_json_spec(const TreeSpec& spec) {
  std::string tree = "[1, ";
  write_node(spec, tree);
  tree += "]";
  Value shape;
  if (!make_shape(spec, shape)) shape = Value();
  return to_json(Value::list({shape, Value(std::move(tree))}), {.indent = 4, .ascii = true, .python = true});
}

std::string to_pickle_spec(const TreeSpec& spec) {
  return to_hex(torch::dill_pickle(PickleNodes().make(spec)));
}

std::vector<std::string> leaf_keys(const TreeSpec& spec) {
  std::vector<std::string> keys;
  collect_keys(spec, "", true, keys);
  std::unordered_set<std::string_view> seen;
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

}  // namespace cbk::h5
