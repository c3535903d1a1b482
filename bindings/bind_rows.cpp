// The rows of a listing: what is told of each leaf of a tree. One call makes them all, because a checkpoint
// of 20,000 tensors should be listed in a blink.
#include <unordered_map>

#include "bindings/kind.hpp"
#include "bindings/modules.hpp"
#include "host/base/glob.hpp"
#include "host/tensor/expression.hpp"
#include "host/value/walk.hpp"

namespace cbk::lua {
namespace {

/// Finds tensors that are one, or lie in one storage, by the keys they were first seen under.
class TieFinder {
 public:
  struct Ties {
    const std::string* tied_to = nullptr;  // the same bytes seen the same way
    const std::string* shares = nullptr;   // other bytes of the same storage
  };

  Ties find(const std::string& path, const Value& value) {
    const TensorLeaf& leaf = value.as_leaf();
    // What has one owner stands in one place only: most tensors are not looked up.
    if (!value.is_unshared()) {
      const auto [same, is_first] = by_leaf_.try_emplace(&leaf, path);
      if (!is_first) return {&same->second, nullptr};
    }
    const View* view = leaf.tensor.view();
    if (view == nullptr || leaf.tensor.nbytes() == 0) return {};
    if (view->storage.use_count() == 1 && leaf.tensor.expression().use_count() == 1) return {};
    const auto [first, is_new] = by_storage_.try_emplace(view->storage.get(), First{path, &leaf});
    if (is_new) return {};
    if (first->second.leaf->tensor.same_data(leaf.tensor)) return {&first->second.path, nullptr};
    return {nullptr, &first->second.path};
  }

 private:
  struct First {
    std::string path;
    const TensorLeaf* leaf;
  };
  std::unordered_map<const void*, std::string> by_leaf_;
  std::unordered_map<const void*, First> by_storage_;
};

void set_text(lua_State* L, const char* key, std::string_view text) {
  push(L, text);
  lua_setfield(L, -2, key);
}

void set_number(lua_State* L, const char* key, uint64_t number) {
  push_unsigned(L, number);
  lua_setfield(L, -2, key);
}

/// Fills the row at the top of the stack.
void describe_tensor(lua_State* L, const TensorLeaf& leaf, const TieFinder::Ties& ties) {
  set_text(L, "type", name_of(leaf.tensor.dtype()));
  set_text(L, "role", role_name(leaf.role));
  push_integers(L, leaf.tensor.shape());
  lua_setfield(L, -2, "shape");
  set_number(L, "numel", static_cast<uint64_t>(leaf.tensor.numel()));
  set_number(L, "bytes", leaf.tensor.nbytes());
  if (ties.tied_to != nullptr) set_text(L, "tied_to", *ties.tied_to);
  if (ties.shares != nullptr) set_text(L, "shares", *ties.shares);
  if (const std::string_view problem = problem_of(*leaf.tensor.expression()); !problem.empty())
    set_text(L, "problem", problem);
}

void describe_value(lua_State* L, const Value& value) {
  const bool is_unreadable = value.is(Value::Kind::object) && value.as_object().type == "unreadable";
  set_text(L, "type", is_unreadable ? "unreadable" : kind_of(value));
  if (is_unreadable) set_text(L, "problem", value.as_object().repr);
  set_number(L, "bytes", 0);
}

/// `cbk.leaf_rows(tree, pattern, with_tensors)`
int leaf_rows(lua_State* L) {
  const Value root = to_value(L, 1);
  std::optional<Glob> glob;
  std::optional<Glob> below;
  if (!lua_isnoneornil(L, 2)) {
    const std::string pattern(check_string(L, 2));
    glob.emplace(pattern);
    below.emplace(pattern + "[./]*");
  }
  const bool with_tensors = lua_toboolean(L, 3) != 0;
  constexpr int fields_of_most = 8;
  TieFinder ties;
  int count = 0;
  lua_newtable(L);
  each_leaf(root, [&](const std::string& path, const Value& leaf) {
    const bool is_tensor = leaf.is(Value::Kind::tensor);
    const TieFinder::Ties found = is_tensor ? ties.find(path, leaf) : TieFinder::Ties{};
    if (glob && !glob->matches(path) && !below->matches(path)) return;
    lua_createtable(L, 0, fields_of_most);
    set_text(L, "path", path);
    if (is_tensor) {
      describe_tensor(L, leaf.as_leaf(), found);
    } else {
      describe_value(L, leaf);
    }
    if (!is_tensor || with_tensors) {
      push_raw(L, leaf);
      lua_setfield(L, -2, "value");
    }
    lua_rawseti(L, -2, ++count);
  });
  return 1;
}

}  // namespace

void bind_rows(lua_State* L) {
  static const luaL_Reg functions[] = {{"leaf_rows", guarded<leaf_rows>}, {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
