// The structure of a checkpoint apart from its leaves. spec_v04 reads and writes it as a pickle, spec_v05 as
// JSON.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host/base/memory_budget.hpp"
#include "host/value/value.hpp"

namespace cbk::h5 {

struct TreeSpec {
  enum class Kind { leaf, dict, ordered, list, tuple, set, deque, named };
  Kind kind = Kind::leaf;
  std::vector<Value> keys;        // dict, ordered: one per child
  std::optional<int64_t> maxlen;  // deque
  std::string type;               // named: the class
  std::vector<TreeSpec> children;

  [[nodiscard]] bool is_map() const { return kind == Kind::dict || kind == Kind::ordered; }
};

/// The dotted keys of all leaves in order. A key that two leaves share is an error. Deep trees make long
/// keys: they are charged.
std::vector<std::string> leaf_keys(const TreeSpec& spec, MemoryBudget& memory);

/// JSON as Python writes it. Its text is charged, because many objects of a file may refer to the same text.
Value parse_python_json(std::string_view text, MemoryBudget& memory);

/// The tree with the leaves that `next` gives, in order.
Value build_tree(const TreeSpec& spec, const std::function<Value()>& next);

// --- the parts of both forms of a spec; errors are `format` or `unsupported`

/// The name of a container, such as "builtins.dict"; and the kind of a name.
std::string_view container_name(TreeSpec::Kind kind);
TreeSpec::Kind container_kind(std::string_view name);

/// A member of a node, and the items of a list that `what` names.
const Value& spec_member(const Value& node, std::string_view name);
const std::vector<Value>& spec_items(const Value& list, std::string_view what);

/// Sets the keys of a dict, which must be valid in a checkpoint.
void set_keys(TreeSpec& spec, const std::vector<Value>& keys);
/// Fails unless there are as many children as keys.
void check_children(const TreeSpec& spec);

}  // namespace cbk::h5
