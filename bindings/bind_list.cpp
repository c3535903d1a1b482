// List: lists, tuples, sets and deques. Positions count from 1; tuples, frozen sets and sizes cannot be
// changed.
#include "bindings/containers.hpp"
#include "bindings/kind.hpp"
#include "bindings/modules.hpp"

namespace cbk::lua {
namespace {

int64_t position_at(lua_State* L, int index) {
  const auto position = to_integer(L, index);
  if (!position) fail(Errc::usage, "a List is indexed by positions from 1, not by a {}", type_name(L, index));
  return *position;
}

int list_index(lua_State* L) {
  const auto list = check<Sequence>(L, 1);
  const int64_t position = position_at(L, 2);
  if (position < 1 || position > static_cast<int64_t>(list->items.size())) {
    lua_pushnil(L);
  } else {
    push(L, list->items[static_cast<size_t>(position - 1)]);
  }
  return 1;
}

void edit_list(Sequence& list) {
  using Kind = Sequence::Kind;
  edit(list.edits, "List");
  if (list.kind == Kind::tuple || list.kind == Kind::frozenset || list.kind == Kind::torch_size) {
    fail(Errc::usage, "a {} cannot be changed; make a new one",
         kind_of(Value(std::make_shared<Sequence>(list))));
  }
}

int list_newindex(lua_State* L) {
  const auto list = check<Sequence>(L, 1);
  edit_list(*list);
  auto& items = list->items;
  const auto count = static_cast<int64_t>(items.size());
  const int64_t position = position_at(L, 2);
  if (position < 1 || position > count + 1) {
    fail(Errc::usage, "position {1} is out of range for a List of {0} items; the next new position is {2}",
         count, position, count + 1);
  }
  if (!lua_isnil(L, 3)) {
    Value value = within(fmt::format("[{}]", position), [&] { return to_value(L, 3); });
    if (position == count + 1) {
      items.push_back(std::move(value));
    } else {
      items[static_cast<size_t>(position - 1)] = std::move(value);
    }
  } else if (position == count) {
    items.pop_back();
  } else if (position < count) {
    fail(Errc::usage, "only the last item of a List can be set to nil; use cbk.remove(list, position)");
  }
  return 0;
}

int list_len(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(check<Sequence>(L, 1)->items.size()));
  return 1;
}

int list_tostring(lua_State* L) {
  const auto list = check<Sequence>(L, 1);
  const size_t size = list->items.size();
  const bool plain = list->kind == Sequence::Kind::list;
  push(L, std::string_view(fmt::format("List ({}{} {})", plain ? "" : fmt::format("{}, ", kind_of(list)),
                                       size, size == 1 ? "item" : "items")));
  return 1;
}

template <Sequence::Kind kind>
int make_sequence(lua_State* L) {
  auto list = std::make_shared<Sequence>();
  list->kind = kind;
  list->items = items_at(L, 1);
  push(L, std::move(list));
  return 1;
}

/// cbk.set(from): every value once, in order of first appearance.
int make_set(lua_State* L) {
  auto set = std::make_shared<Sequence>();
  set->kind = Sequence::Kind::set;
  Dict seen;
  for (Value& item : items_at(L, 1)) {
    check_key(item);
    if (seen.find(item) != nullptr) continue;
    seen.set(item, Value());
    set->items.push_back(std::move(item));
  }
  push(L, std::move(set));
  return 1;
}

int insert_item(lua_State* L) {
  const auto list = check<Sequence>(L, 1);
  edit_list(*list);
  const auto count = static_cast<int64_t>(list->items.size());
  const int64_t position = check_integer(L, 2, 1, count + 1);
  list->items.insert(list->items.begin() + (position - 1), to_value(L, 3));
  return 0;
}

int remove_item(lua_State* L) {
  const auto list = check<Sequence>(L, 1);
  edit_list(*list);
  const auto count = static_cast<int64_t>(list->items.size());
  if (count == 0) fail(Errc::usage, "cannot remove from an empty List");
  const int64_t position = opt_integer(L, 2, count, 1, count);
  push(L, list->items[static_cast<size_t>(position - 1)]);
  list->items.erase(list->items.begin() + (position - 1));
  return 1;
}

}  // namespace

std::vector<Value> items_at(lua_State* L, int index) {
  std::vector<Value> items;
  if (const auto source = test<Sequence>(L, index)) return source->items;
  if (lua_isnoneornil(L, index)) return items;
  if (!lua_istable(L, index)) fail_type(L, index, "table or List");
  const size_t count = lua_objlen(L, index);
  lua_pushnil(L);
  if (count == 0 && lua_next(L, index) != 0)
    fail_argument(L, index, "a list expected, got a table with names");
  lua_settop(L, index);
  items.reserve(count);
  for (size_t i = 1; i <= count; ++i) {
    lua_rawgeti(L, index, static_cast<int>(i));
    items.push_back(within(fmt::format("[{}]", i), [&] { return to_value(L, -1); }));
    lua_pop(L, 1);
  }
  return items;
}

void bind_list(lua_State* L) {
  static const luaL_Reg metamethods[] = {{"__newindex", guarded<list_newindex>},
                                         {"__len", guarded<list_len>},
                                         {"__tostring", guarded<list_tostring>},
                                         {nullptr, nullptr}};
  register_type<Sequence>(L, {.metamethods = metamethods, .index = guarded<list_index>});
  static const luaL_Reg functions[] = {{"list", guarded<make_sequence<Sequence::Kind::list>>},
                                       {"tuple", guarded<make_sequence<Sequence::Kind::tuple>>},
                                       {"set", guarded<make_set>},
                                       {"insert", guarded<insert_item>},
                                       {"remove", guarded<remove_item>},
                                       {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
