#include "host/formats/h5/spec_v04.hpp"

#include <map>

#include "host/formats/h5/stored_pickles.hpp"
#include "host/formats/h5/text.hpp"
#include "host/formats/pickle/pickler.hpp"
#include "host/value/kind.hpp"

namespace cbk::h5 {
namespace {

using Kind = TreeSpec::Kind;

constexpr std::string_view tree_spec_class = "torch.utils._pytree.TreeSpec";
constexpr std::string_view leaf_spec_class = "torch.utils._pytree.LeafSpec";

/// The name of a type, such as "builtins.dict", for any spelling in the pickle.
std::string type_name(const Value& type) {
  if (!type.is(Value::Kind::object) || type.as_object().type != "class") {
    fail(Errc::format, "the type of a node of __spec__ is {}", a_kind(type));
  }
  return type.as_object().repr;
}

TreeSpec read_node(const Value& node, int depth) {
  if (depth > 500) fail(Errc::format, "__spec__ is nested too deeply");
  const std::string type = node.is(Value::Kind::object) ? node.as_object().type : node.kind_name();
  if (type != tree_spec_class && type != leaf_spec_class)
    fail(Errc::format, "__spec__ holds a {} instead of a TreeSpec", quote(type));
  TreeSpec spec;
  const Value& state = node.as_object().state;
  if (type == leaf_spec_class || spec_member(state, "type").is_none()) return spec;
  spec.kind = container_kind(type_name(spec_member(state, "type")));
  switch (spec.kind) {
    case Kind::dict:
    case Kind::ordered:
      set_keys(spec, spec_items(spec_member(state, "context"), "a key list"));
      break;
    case Kind::named:
      spec.type = type_name(spec_member(state, "context"));
      break;
    case Kind::list:
    case Kind::tuple:
      break;
    default:
      fail(Errc::format, "__spec__ holds a {}, which this version cannot have", container_name(spec.kind));
  }
  for (const Value& child : spec_items(spec_member(state, "children_specs"), "children_specs")) {
    spec.children.push_back(read_node(child, depth + 1));
  }
  check_children(spec);
  return spec;
}

Value make_object(std::string_view type, std::string_view repr, Value state = {}) {
  auto object = std::make_shared<Object>();
  object->type = type;
  object->repr = repr;
  object->state = std::move(state);
  return object;
}

/// Turns a spec into the pickled classes' objects; each class is one object.
class PickleNodes {
 public:
  Value make(const TreeSpec& spec) {
    int64_t leaves = 0;
    return make(spec, leaves);
  }

 private:
  Value make(const TreeSpec& spec, int64_t& leaves) {
    const bool is_leaf = spec.kind == Kind::leaf;
    if (is_leaf && !leaf_.is_none()) {
      ++leaves;
      return leaf_;
    }
    const bool is_map = spec.is_map();
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
    Value node = make_object(is_leaf ? leaf_spec_class : tree_spec_class, "", state);
    if (is_leaf) leaf_ = node;
    return node;
  }

  const Value& type_of(Kind kind) {
    Value& type = types_[kind];
    if (type.is_none()) type = make_object("class", container_name(kind));
    return type;
  }

  std::map<Kind, Value> types_;
  Value leaf_;  // one object for all leaves, as they do not differ
};

}  // namespace

TreeSpec parse_spec_v04(std::string_view hex, const MemoryBudget& memory) {
  MemoryBudget until_read(memory);
  return read_node(unpickle_stored(from_hex(hex), false, until_read), 0);
}

std::string to_spec_v04(const TreeSpec& spec) {
  return to_hex(pickle::dump_dill(PickleNodes().make(spec)));
}

}  // namespace cbk::h5
