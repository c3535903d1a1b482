#include "host/formats/h5/spec_v05.hpp"

#include <utility>

#include "host/value/json.hpp"

namespace cbk::h5 {
namespace {

using Kind = TreeSpec::Kind;

constexpr std::string_view list_end = "\n]";

TreeSpec read_node(const Value& node, MemoryBudget& memory) {
  TreeSpec spec;
  const Value& type = spec_member(node, "type");
  if (type.is_none()) return spec;
  spec.kind = container_kind(type.as_string());
  const Value& context = spec_member(node, "context");
  switch (spec.kind) {
    case Kind::dict:
    case Kind::ordered:
      set_keys(spec, spec_items(parse_python_json(context.as_string(), memory), "a key list"));
      break;
    case Kind::deque: {
      const Value maxlen = parse_python_json(context.as_string(), memory);
      if (!maxlen.is_none()) spec.maxlen = maxlen.as_int();
      break;
    }
    case Kind::named:
      spec.type = context.as_string();
      break;
    default:
      break;
  }
  const auto& children = spec_items(spec_member(node, "children_spec"), "children_spec");
  spec.children.reserve(children.size());
  for (const Value& child : children) spec.children.push_back(read_node(child, memory));
  check_children(spec);
  return spec;
}

void write_node(const TreeSpec& spec, std::string& out) {
  if (spec.kind == Kind::leaf) {
    out += R"({"type": null, "context": null, "children_spec": []})";
    return;
  }
  std::string context = "null";
  if (spec.is_map()) {
    context = to_json(Value::list(spec.keys), {.ascii = true, .python = true});
  } else if (spec.kind == Kind::deque && spec.maxlen) {
    context = std::to_string(*spec.maxlen);
  } else if (spec.kind == Kind::named) {
    context = spec.type;
  }
  out += R"({"type": ")";
  out += container_name(spec.kind);
  out += R"(", "context": )";
  append_json_quoted(out, context, true);
  out += R"(, "children_spec": [)";
  for (size_t i = 0; i < spec.children.size(); ++i) {
    if (i > 0) out += ", ";
    write_node(spec.children[i], out);
  }
  out += "]}";
}

/// The tree with "*" for leaves as JSON; false if JSON cannot represent it.
bool make_shape(const TreeSpec& spec, Value& out) {
  if (spec.kind == Kind::leaf) {
    out = "*";
    return true;
  }
  if (spec.kind == Kind::set || spec.kind == Kind::deque) return false;
  const bool is_map = spec.is_map();
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

}  // namespace

TreeSpec parse_spec_v05(const Value& pair, MemoryBudget& memory) {
  const auto& parts = spec_items(pair, "the value");
  if (parts.size() != 2 || !parts[1].is(Value::Kind::string))
    fail(Errc::format, "__spec__ is not a pair of shape and tree");
  const Value tree = parse_python_json(parts[1].as_string(), memory);
  const auto& versioned = spec_items(tree, "the tree");
  if (versioned.size() != 2 || !versioned[0].is(Value::Kind::integer))
    fail(Errc::format, "the tree of __spec__ has no protocol number");
  if (versioned[0].as_int() != 1)
    fail(Errc::unsupported, "__spec__ has protocol {}, only 1 is known", versioned[0].as_int());
  return read_node(versioned[1], memory);
}

std::string to_spec_v05(const TreeSpec& spec) {
  // Writes the pair as the list of the shape, with the tree in place of its end: one value for both would
  // take much memory.
  Value shape;
  if (!make_shape(spec, shape)) shape = Value();
  std::string out =
      to_json(Value::list({std::exchange(shape, {})}), {.indent = 4, .ascii = true, .python = true});
  out.resize(out.size() - list_end.size());
  std::string tree = "[1, ";
  write_node(spec, tree);
  tree += "]";
  out += ",\n    ";
  append_json_quoted(out, tree, true);
  out += list_end;
  return out;
}

}  // namespace cbk::h5
