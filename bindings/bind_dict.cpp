// Dict: an ordered map. Indexing always gives data; operations are functions of the module (bind_tree.cpp).
#include "bindings/containers.hpp"
#include "bindings/kind.hpp"
#include "bindings/modules.hpp"
#include "host/value/kind.hpp"

namespace cbk::lua {
namespace {

int dict_index(lua_State* L) {
  const auto dict = check<Dict>(L, 1);
  const Value* value =
      lua_type(L, 2) == LUA_TSTRING ? dict->find(check_string(L, 2)) : dict->find(key_at(L, 2));
  if (value == nullptr) {
    lua_pushnil(L);
  } else {
    push(L, *value);
  }
  return 1;
}

int dict_newindex(lua_State* L) {
  const auto dict = check<Dict>(L, 1);
  edit(dict->edits, "Dict");
  Value key = key_at(L, 2);
  if (lua_isnil(L, 3)) {
    dict->erase(key);
  } else {
    Value value = within(quote(key_text(key)), [&] { return to_value(L, 3); });
    dict->set(std::move(key), std::move(value));
  }
  return 0;
}

/// As for a Lua table: the number of keys 1, 2, ….
int dict_len(lua_State* L) {
  const auto dict = check<Dict>(L, 1);
  int64_t count = 0;
  while (dict->find(Value(count + 1)) != nullptr) ++count;
  lua_pushnumber(L, static_cast<double>(count));
  return 1;
}

/// `cbk.count(x)`: entries of a Dict, items of a List or of a Lua list.
int count(lua_State* L) {
  size_t size = 0;
  if (const auto dict = test<Dict>(L, 1)) {
    size = dict->size();
  } else if (lua_istable(L, 1)) {
    size = lua_objlen(L, 1);
  } else {
    size = check<Sequence>(L, 1)->items.size();
  }
  lua_pushnumber(L, static_cast<double>(size));
  return 1;
}

int dict_tostring(lua_State* L) {
  const size_t size = check<Dict>(L, 1)->size();
  push(L, std::string_view(fmt::format("Dict ({} {})", size, size == 1 ? "entry" : "entries")));
  return 1;
}

Dict::Kind dict_kind(std::string_view name) {
  if (name == "dict") return Dict::Kind::dict;
  if (name == "ordereddict") return Dict::Kind::ordered;
  fail(Errc::usage, "unknown kind of dict {}; known: dict, ordereddict", quote(name));
}

/// From { {key, value}, … }: the form of an ordered Dict in Lua code.
void fill_from_pairs(lua_State* L, int index, Dict& dict) {
  const auto count = static_cast<int>(lua_objlen(L, index));
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, index, i);
    if (!lua_istable(L, -1) || lua_objlen(L, -1) != 2) {
      fail_argument(L, index,
                    fmt::format("a list of {{key, value}} pairs expected; item {} is not a pair", i));
    }
    lua_rawgeti(L, -1, 1);
    Value key = key_at(L, lua_gettop(L));
    lua_rawgeti(L, -2, 2);
    Value value = within(quote(key_text(key)), [&] { return to_value(L, -1); });
    dict.set(std::move(key), std::move(value));
    lua_pop(L, 3);
  }
}

int make_dict(lua_State* L) {
  const auto source = test<Dict>(L, 1);
  auto dict = std::make_shared<Dict>(source ? source->kind : Dict::Kind::dict);
  if (!lua_isnoneornil(L, 2)) dict->kind = dict_kind(check_string(L, 2));
  if (source) {
    dict->attributes = source->attributes;
    for (const auto& [key, value] : source->entries()) dict->set(key, value);
  } else if (lua_istable(L, 1) && lua_objlen(L, 1) > 0) {
    fill_from_pairs(L, 1, *dict);
  } else if (lua_istable(L, 1)) {
    lua_pushnil(L);
    const bool empty = lua_next(L, 1) == 0;
    lua_settop(L, 1);
    if (!empty) {
      const Value value = to_value(L, 1);
      for (const auto& [key, item] : value.as_dict().entries()) dict->set(key, item);
    }
  } else if (!lua_isnoneornil(L, 1)) {
    fail_type(L, 1, "table or Dict");
  }
  push(L, std::move(dict));
  return 1;
}

/// As in Python, keys are immutable: scalars and tuples of scalars. `parts` bounds the work on tuples.
void count_key_parts(const Value& key, size_t& parts) {
  constexpr size_t key_limit = 256;
  if (++parts > key_limit) fail(Errc::usage, "a tuple that is a key can have at most {} parts", key_limit);
  if (key.is(Value::Kind::dict) || key.is(Value::Kind::tensor) || key.is(Value::Kind::object) ||
      (key.is(Value::Kind::sequence) && key.as_sequence().kind != Sequence::Kind::tuple)) {
    fail(Errc::usage, "{} cannot be a key{}", a_kind(key), parts > 1 ? ", nor be inside one" : "");
  }
  if (!key.is(Value::Kind::sequence)) return;
  for (const Value& item : key.as_sequence().items) count_key_parts(item, parts);
}

}  // namespace

void check_key(const Value& key) {
  size_t parts = 0;
  count_key_parts(key, parts);
}

void edit(Edits& edits, std::string_view type) {
  ++edits.count;
  if (!edits.are_refused) return;
  fail(Errc::usage,
       "this {} belongs to an open checkpoint, which is read-only; change a copy: cbk.copy(x), or "
       "cbk.deep_copy(x) with all that is inside",
       type);
}

Value key_at(lua_State* L, int index) {
  if (lua_isnoneornil(L, index)) fail(Errc::usage, "nil cannot be a key (Python's None is cbk.null)");
  Value key = to_value(L, index);
  check_key(key);
  return key;
}

void bind_dict(lua_State* L) {
  static const luaL_Reg metamethods[] = {{"__newindex", guarded<dict_newindex>},
                                         {"__len", guarded<dict_len>},
                                         {"__tostring", guarded<dict_tostring>},
                                         {nullptr, nullptr}};
  register_type<Dict>(L, {.metamethods = metamethods, .index = guarded<dict_index>});
  static const luaL_Reg functions[] = {
      {"dict", guarded<make_dict>}, {"count", guarded<count>}, {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
