// Functions over Dicts, Lists and whole trees: items, keys, copies, kinds, dotted paths.
#include <algorithm>

#include "bindings/containers.hpp"
#include "bindings/kind.hpp"
#include "bindings/leaves.hpp"
#include "bindings/modules.hpp"
#include "host/base/glob.hpp"
#include "host/value/leaf_table.hpp"
#include "host/value/unfolding.hpp"
#include "host/value/walk.hpp"

namespace cbk::lua {

/// A Dict or List that a loop iterates over, with its length at the start of the loop. The loop may change
/// it: erased items are skipped, replaced items have their new value.
struct Items {
  std::optional<Dict::Pin> dict;
  std::shared_ptr<Sequence> list;
  size_t end = 0;
  size_t next = 0;
};
template <>
struct TypeName<Items> {
  static constexpr const char* value = "Items";
};

/// The leaves of a tree that a loop iterates over.
struct Leaves {
  LeafTable table;
  Glob glob;
  bool only_tensors;
  size_t next = 0;
};
template <>
struct TypeName<Leaves> {
  static constexpr const char* value = "Leaves";
};

namespace {

enum class Raw { none, values, all };  // what keeps its exact kind

template <Raw raw>
void push_key_and_value(lua_State* L, const Value& key, const Value& value) {
  if constexpr (raw == Raw::all) {
    push_raw(L, key);
  } else {
    push(L, key);
  }
  if constexpr (raw == Raw::none) {
    push(L, value);
  } else {
    push_raw(L, value);
  }
}

template <Raw raw>
int next_item(lua_State* L) {
  const auto items = check<Items>(L, lua_upvalueindex(1));
  while (items->next < items->end) {
    const size_t position = items->next++;
    if (items->list) {
      if (position >= items->list->items.size()) return 0;
      push_key_and_value<raw>(L, Value(static_cast<int64_t>(position) + 1), items->list->items[position]);
      return 2;
    }
    if (const Dict::Entry* entry = (**items->dict).entry_at(position)) {
      push_key_and_value<raw>(L, entry->first, entry->second);
      return 2;
    }
  }
  return 0;
}

/// Pushes an iterator over the Dict or List at 1.
template <Raw raw>
void push_items(lua_State* L) {
  auto items = std::make_shared<Items>();
  if (const auto dict = test<Dict>(L, 1)) {
    items->dict.emplace(dict);
    items->end = dict->position_count();
  } else if ((items->list = test<Sequence>(L, 1))) {
    items->end = items->list->items.size();
  } else {
    fail_type(L, 1, "Dict, List or table");
  }
  push(L, std::move(items));
  lua_pushcclosure(L, guarded<next_item<raw>>, 1);
}

/// Pushes the keys of the Lua table at `index` as a list: positions first, then the rest in order.
void push_sorted_keys(lua_State* L, int index) {
  std::vector<double> numbers;
  std::vector<std::string> texts;
  lua_pushnil(L);
  while (lua_next(L, index) != 0) {
    lua_pop(L, 1);
    if (lua_type(L, -1) == LUA_TNUMBER) {
      numbers.push_back(lua_tonumber(L, -1));
    } else if (lua_type(L, -1) == LUA_TSTRING) {
      texts.emplace_back(check_string(L, -1));
    } else {
      fail(Errc::usage, "cannot order a table with a {} as a key", type_name(L, -1));
    }
  }
  std::sort(numbers.begin(), numbers.end());
  std::sort(texts.begin(), texts.end());
  lua_createtable(L, static_cast<int>(numbers.size() + texts.size()), 0);
  int position = 0;
  for (double number : numbers) {
    lua_pushnumber(L, number);
    lua_rawseti(L, -2, ++position);
  }
  for (const std::string& text : texts) {
    push(L, std::string_view(text));
    lua_rawseti(L, -2, ++position);
  }
}

/// Upvalues: the table, its ordered keys, the position.
int next_in_table(lua_State* L) {
  const int position = static_cast<int>(lua_tonumber(L, lua_upvalueindex(3))) + 1;
  lua_rawgeti(L, lua_upvalueindex(2), position);
  if (lua_isnil(L, -1)) return 1;
  lua_pushnumber(L, position);
  lua_replace(L, lua_upvalueindex(3));
  lua_pushvalue(L, -1);
  lua_gettable(L, lua_upvalueindex(1));
  return 2;
}

int items_of(lua_State* L) {
  if (lua_istable(L, 1)) {
    lua_settop(L, 1);
    push_sorted_keys(L, 1);
    lua_pushnumber(L, 0);
    lua_pushcclosure(L, guarded<next_in_table>, 3);
    return 1;
  }
  push_items<Raw::none>(L);
  return 1;
}

/// `cbk.raw_items(container)`: as items, with exact kinds (1.0 stays a float); for a Dict or a List.
int raw_items_of(lua_State* L) {
  push_items<Raw::all>(L);
  return 1;
}

/// `cbk.key_text(key)`: the form of a key in a dotted path. A file may have keys that Lua cannot set.
int text_of_key(lua_State* L) {
  push(L, std::string_view(key_text(to_value(L, 1))));
  return 1;
}

int keys_of(lua_State* L) {
  if (lua_istable(L, 1)) {
    push_sorted_keys(L, 1);
    return 1;
  }
  const auto dict = check<Dict>(L, 1);
  lua_createtable(L, static_cast<int>(dict->size()), 0);
  int position = 0;
  for (const auto& [key, value] : dict->entries()) {
    push(L, key);
    lua_rawseti(L, -2, ++position);
  }
  return 1;
}

/// Whether the value is a number: it is its own copy, and stays a float or a long spelling where it is one.
bool is_number(const Value& value) {
  return value.is(Value::Kind::integer) || value.is(Value::Kind::real);
}

int copy_of(lua_State* L) {
  const Value value = to_value(L, 1);
  if (const auto dict = test<Dict>(L, 1)) {
    push(L, std::make_shared<Dict>(*dict));
  } else if (const auto list = test<Sequence>(L, 1)) {
    push(L, std::make_shared<Sequence>(*list));
  } else {
    is_number(value) ? lua_settop(L, 1) : push(L, value);
  }
  return 1;
}

int deep_copy_of(lua_State* L) {
  const Value value = to_value(L, 1);
  is_number(value) ? lua_settop(L, 1) : push(L, deep_copy(value));
  return 1;
}

/// The value at container[key] (arguments 1 and 2), or nullptr.
const Value* element(lua_State* L) {
  if (const auto dict = test<Dict>(L, 1)) return dict->find(key_at(L, 2));
  const auto list = check<Sequence>(L, 1);
  const int64_t position = check_integer(L, 2);
  const bool inside = position >= 1 && position <= static_cast<int64_t>(list->items.size());
  return inside ? &list->items[static_cast<size_t>(position - 1)] : nullptr;
}

int kind_at(lua_State* L) {
  if (!lua_isnoneornil(L, 2)) {
    const Value* value = element(L);
    if (value == nullptr) return 0;
    push(L, kind_of(*value));
  } else if (lua_isnoneornil(L, 1)) {
    lua_pushnil(L);
  } else if (lua_istable(L, 1)) {
    push(L, std::string_view("table"));
  } else if (lua_isfunction(L, 1) || lua_isthread(L, 1)) {
    push(L, std::string_view(luaL_typename(L, 1)));
  } else if (lua_isuserdata(L, 1) && !is<Dict>(L, 1) && !is<Sequence>(L, 1) && !is<const TensorLeaf>(L, 1) &&
             !is<const Value>(L, 1)) {
    push(L, std::string_view(type_name(L, 1)));
  } else if (lua_type(L, 1) > LUA_TTHREAD && !is_int64(L, 1) && !is_uint64(L, 1)) {
    push(L, std::string_view("cdata"));
  } else {
    push(L, kind_of(to_value(L, 1)));
  }
  return 1;
}

int raw_at(lua_State* L) {
  const Value* value = element(L);
  if (value == nullptr) return 0;
  push_raw(L, *value);
  return 1;
}

int find_at(lua_State* L) {
  const Value tree = to_value(L, 1);
  const Value* value = find_path(tree, check_string(L, 2));
  if (value == nullptr) return 0;
  push(L, *value);
  return 1;
}

void push_as_table(lua_State* L, const Value& value, Unfolding& unfolding, int depth);

void push_dict_as_table(lua_State* L, const Dict& dict, Unfolding& unfolding, int depth) {
  lua_createtable(L, 0, static_cast<int>(dict.size()));
  for (const auto& [key, item] : dict.entries()) {
    if (key.is(Value::Kind::string) || key.is(Value::Kind::boolean)) {
      push(L, key);
    } else if (key.is(Value::Kind::integer) && key.as_integer().fits) {
      lua_pushnumber(L, static_cast<double>(key.as_int()));
    } else {
      push(L, std::string_view(key_text(key)));  // cdata and userdata do not work as table keys
    }
    push_as_table(L, item, unfolding, depth);
    lua_rawset(L, -3);
  }
}

void push_list_as_table(lua_State* L, const std::vector<Value>& items, Unfolding& unfolding, int depth) {
  lua_createtable(L, static_cast<int>(items.size()), 0);
  int position = 0;
  for (const Value& item : items) {
    push_as_table(L, item, unfolding, depth);
    lua_rawseti(L, -2, ++position);
  }
}

void push_as_table(lua_State* L, const Value& value, Unfolding& unfolding, int depth) {
  luaL_checkstack(L, 8, "a tree nested too deeply");
  if (depth > 500) fail(Errc::value, "cannot make a table of a tree with more than 500 levels");
  if (value.is(Value::Kind::dict)) {
    const Dict& dict = value.as_dict();
    unfolding.enter(value, dict.size(), [&] { push_dict_as_table(L, dict, unfolding, depth + 1); });
  } else if (value.is(Value::Kind::sequence)) {
    const std::vector<Value>& items = value.as_sequence().items;
    unfolding.enter(value, items.size(), [&] { push_list_as_table(L, items, unfolding, depth + 1); });
  } else {
    push(L, value);
  }
}

int totable(lua_State* L) {
  Unfolding unfolding;
  push_as_table(L, to_value(L, 1), unfolding, 0);
  return 1;
}

int equal(lua_State* L) {
  lua_pushboolean(L, to_value(L, 1).equals(to_value(L, 2)));
  return 1;
}

int leaves_of(lua_State* L) {
  const auto pattern = lua_isnoneornil(L, 2) ? std::string_view("*") : check_string(L, 2);
  push_leaves(L, to_value(L, 1), pattern, false);
  return 1;
}

int tensors_of(lua_State* L) {
  const auto pattern = lua_isnoneornil(L, 2) ? std::string_view("*") : check_string(L, 2);
  push_leaves(L, to_value(L, 1), pattern, true);
  return 1;
}

template <Raw raw>
int next_leaf(lua_State* L) {
  const auto leaves = check<Leaves>(L, lua_upvalueindex(1));
  while (leaves->next < leaves->table.size()) {
    const size_t row = leaves->next++;
    const Value* value = leaves->table.value(row);
    if (value == nullptr || (leaves->only_tensors && !value->is(Value::Kind::tensor))) continue;
    const std::string path = leaves->table.path(row);
    if (!leaves->glob.matches(path)) continue;
    push_key_and_value<raw>(L, Value(path), *value);
    return 2;
  }
  return 0;
}

template <Raw raw>
void push_leaf_iterator(lua_State* L, const Value& root, std::string_view pattern, bool only_tensors) {
  push(L, std::make_shared<Leaves>(Leaves{LeafTable(root), Glob(pattern), only_tensors}));
  lua_pushcclosure(L, guarded<next_leaf<raw>>, 1);
}

/// `cbk.raw_leaves(tree)`: paths, and values as returned by `cbk.raw`.
int raw_leaves_of(lua_State* L) {
  push_leaf_iterator<Raw::values>(L, to_value(L, 1), "*", false);
  return 1;
}

}  // namespace

void push_leaves(lua_State* L, const Value& root, std::string_view pattern, bool only_tensors) {
  push_leaf_iterator<Raw::none>(L, root, pattern, only_tensors);
}

void bind_tree(lua_State* L) {
  register_type<Items>(L, {});
  register_type<Leaves>(L, {});
  static const luaL_Reg functions[] = {{"items", guarded<items_of>},
                                       {"raw_items", guarded<raw_items_of>},
                                       {"key_text", guarded<text_of_key>},
                                       {"keys", guarded<keys_of>},
                                       {"copy", guarded<copy_of>},
                                       {"deep_copy", guarded<deep_copy_of>},
                                       {"kind", guarded<kind_at>},
                                       {"raw", guarded<raw_at>},
                                       {"find", guarded<find_at>},
                                       {"totable", guarded<totable>},
                                       {"equal", guarded<equal>},
                                       {"leaves", guarded<leaves_of>},
                                       {"raw_leaves", guarded<raw_leaves_of>},
                                       {"tensors", guarded<tensors_of>},
                                       {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
