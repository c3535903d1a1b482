// `cbk.leaf_rows`: the leaves of a tree by number, with their types, shapes and folded keys. Lua gets one row
// at a time, because a checkpoint may have a million of them.
#include <algorithm>
#include <numeric>

#include "bindings/kind.hpp"
#include "bindings/modules.hpp"
#include "host/value/key_numbers.hpp"
#include "host/value/leaf_rows.hpp"
#include "host/value/natural_order.hpp"
#include "host/value/outline.hpp"

namespace cbk::lua {

template <>
struct TypeName<LeafRows> {
  static constexpr const char* value = "LeafRows";
};

/// Groups of rows with the same folded name; unfolded, each row is a group.
struct LeafGroups {
  std::shared_ptr<const LeafRows> rows;
  std::optional<KeyFold> fold;

  [[nodiscard]] size_t size() const { return fold ? fold->size() : rows->size(); }
  [[nodiscard]] std::string name(size_t group) const;
  /// Indices of LeafRows.
  [[nodiscard]] std::vector<uint32_t> members(size_t group) const {
    if (!fold) return {static_cast<uint32_t>(group)};
    const auto members = fold->rows(group);
    return {members.begin(), members.end()};
  }
};
template <>
struct TypeName<LeafGroups> {
  static constexpr const char* value = "LeafGroups";
};

namespace {

std::string_view type_of(const Value& value) {
  if (value.is(Value::Kind::tensor)) return name_of(value.as_tensor().dtype());
  return problem_with(value).empty() ? kind_of(value) : "unreadable";
}

/// The stored type of the elements: "Q4_K", or their dtype.
std::string_view stored_type(const Value& value) {
  const Encoding* encoding = value.is(Value::Kind::tensor) ? value.as_tensor().encoding() : nullptr;
  return encoding != nullptr ? encoding->name : type_of(value);
}

std::optional<std::string> path_of(const LeafRows& rows, std::optional<size_t> row) {
  return row ? std::optional(rows.table().path(*row)) : std::nullopt;
}

// --- rows in Lua

void set_text(lua_State* L, const char* key, const std::optional<std::string>& text) {
  if (text) set_field(L, key, *text);
}

void set_unsigned(lua_State* L, const char* key, uint64_t number) {
  push_unsigned(L, number);
  lua_setfield(L, -2, key);
}

/// Pushes a table that describes row `index`. Tensors come without their shape.
void push_facts(lua_State* L, const LeafRows& rows, size_t index) {
  constexpr int fields_of_most = 8;
  lua_createtable(L, 0, fields_of_most);
  const Value& value = rows.value(index);
  set_field(L, "type", type_of(value));
  if (const std::string_view problem = problem_with(value); !problem.empty())
    set_field(L, "problem", problem);
  if (!value.is(Value::Kind::tensor)) return;
  if (const Encoding* encoding = value.as_tensor().encoding()) set_field(L, "encoding", encoding->name);
  set_field(L, "role", role_name(value.as_leaf().role));
  const size_t row = rows.leaf(index);
  set_text(L, "tied_to", path_of(rows, rows.ties().tied_to(row)));
  set_text(L, "shares", path_of(rows, rows.ties().shares_with(row)));
}

size_t check_index(lua_State* L, int argument, size_t count) {
  return static_cast<size_t>(check_integer(L, argument, 1, static_cast<int64_t>(count))) - 1;
}

/// `rows:choose(indices)`: only these rows, in this order.
int choose_rows(lua_State* L) {
  const auto rows = check<LeafRows>(L, 1);
  if (!lua_istable(L, 2)) fail_type(L, 2, "list of numbers");
  std::vector<size_t> chosen;
  for (size_t i = 1; i <= lua_objlen(L, 2); ++i) {
    lua_rawgeti(L, 2, static_cast<int>(i));
    chosen.push_back(check_index(L, -1, rows->size()));
    lua_pop(L, 1);
  }
  push(L, std::make_shared<LeafRows>(rows->chosen(chosen)));
  return 1;
}

/// `rows:in_natural_order()`
int rows_in_natural_order(lua_State* L) {
  const auto rows = check<LeafRows>(L, 1);
  push(L, std::make_shared<LeafRows>(rows->chosen(natural_order(*rows))));
  return 1;
}

/// `rows[i]`
int row_at(lua_State* L) {
  const auto rows = check<LeafRows>(L, 1);
  if (lua_type(L, 2) != LUA_TNUMBER) fail_member("a LeafRows", check_string(L, 2), method_names(L, 1));
  const double index = lua_tonumber(L, 2);
  if (!(index >= 1 && index <= static_cast<double>(rows->size()))) return 0;  // nan, too
  const auto position = static_cast<size_t>(index) - 1;
  push_facts(L, *rows, position);
  set_field(L, "path", rows->path(position));
  const Value& value = rows->value(position);
  if (!value.is(Value::Kind::tensor)) return 1;
  push_integers(L, value.as_tensor().shape());
  lua_setfield(L, -2, "shape");
  set_unsigned(L, "numel", static_cast<uint64_t>(value.as_tensor().numel()));
  set_unsigned(L, "bytes", stored_bytes(value.as_tensor()));
  return 1;
}

int row_count(lua_State* L) {
  lua_pushnumber(L, static_cast<double>(check<LeafRows>(L, 1)->size()));
  return 1;
}

int row_path(lua_State* L) {
  const auto rows = check<LeafRows>(L, 1);
  push(L, std::string_view(rows->table().path(rows->leaf(check_index(L, 2, rows->size())))));
  return 1;
}

template <bool raw>
int row_value(lua_State* L) {
  const auto rows = check<LeafRows>(L, 1);
  const Value& value = rows->value(check_index(L, 2, rows->size()));
  if constexpr (raw) {
    push_raw(L, value);
  } else {
    push(L, value);
  }
  return 1;
}

/// `rows:find(path, times)`
int find_row(lua_State* L) {
  const auto rows = check<LeafRows>(L, 1);
  const auto times = static_cast<size_t>(opt_integer(L, 3, 0, 0));
  const auto row = rows->find(check_string(L, 2), times);
  if (!row) return 0;
  lua_pushnumber(L, static_cast<double>(*row + 1));
  return 1;
}

int earlier_rows(lua_State* L) {
  const auto rows = check<LeafRows>(L, 1);
  lua_pushnumber(
      L, static_cast<double>(rows->table().earlier_rows(rows->leaf(check_index(L, 2, rows->size())))));
  return 1;
}

void push_names(lua_State* L, const LeafRows& rows, const TensorTies::Rows& found) {
  lua_createtable(L, static_cast<int>(found.first.size()), 0);
  int position = 0;
  for (const size_t row : found.first) {
    push(L, std::string_view(rows.table().path(row)));
    lua_rawseti(L, -2, ++position);
  }
  lua_pushnumber(L, static_cast<double>(found.count));
}

/// `rows:ties(i, most)`: keys of tied tensors, their number, keys of those that share the storage, their
/// number.
int ties_of_row(lua_State* L) {
  const auto rows = check<LeafRows>(L, 1);
  const size_t row = rows->leaf(check_index(L, 2, rows->size()));
  const auto most = static_cast<size_t>(check_integer(L, 3, 0));
  push_names(L, *rows, rows->ties().all_tied(row, most));
  push_names(L, *rows, rows->ties().all_sharing(row, most));
  return 4;
}

void set_totals(lua_State* L, const TensorTotals& totals) {
  set_unsigned(L, "tensors", totals.tensors);
  set_unsigned(L, "numel", totals.numel);
  set_unsigned(L, "bytes", totals.bytes);
}

/// `rows:totals()`
int totals(lua_State* L) {
  const auto rows = check<LeafRows>(L, 1);
  const RowTotals sums = totals_of(*rows, stored_type);
  lua_createtable(L, 0, 8);
  set_totals(L, sums.all);
  set_unsigned(L, "objects", sums.objects);
  set_unsigned(L, "values", rows->size() - sums.all.tensors);
  set_unsigned(L, "tied", sums.all.tensors - sums.stored.tensors);
  set_unsigned(L, "stored", sums.stored.bytes);
  lua_createtable(L, static_cast<int>(sums.dtypes.size()), 0);
  for (int position = 0; const auto& [dtype, own] : sums.dtypes) {
    lua_createtable(L, 0, 4);
    set_field(L, "dtype", dtype);
    set_totals(L, own);
    lua_rawseti(L, -2, ++position);
  }
  lua_setfield(L, -2, "dtypes");
  return 1;
}

/// `rows:groups { unfolded = false }`
int groups_of(lua_State* L) {
  const auto rows = check<LeafRows>(L, 1);
  const Options options(L, 2, {"unfolded"});
  auto groups = std::make_shared<LeafGroups>(LeafGroups{rows, std::nullopt});
  if (!options.flag("unfolded")) groups->fold.emplace(fold_rows(*rows, stored_type));
  push(L, std::move(groups));
  return 1;
}

// --- groups

/// Sets `values`: the first distinct values of a group, and `more_values` if there are others.
void set_values(lua_State* L, const LeafRows& rows, const std::vector<uint32_t>& members) {
  constexpr size_t most = 16;
  std::vector<uint32_t> distinct;
  bool has_more = false;
  for (const uint32_t member : members) {
    const Value& value = rows.value(member);
    const auto is_same = [&](uint32_t other) { return rows.value(other).equals(value); };
    if (std::ranges::any_of(distinct, is_same)) continue;
    has_more = distinct.size() == most;
    if (has_more) break;
    distinct.push_back(member);
  }
  lua_createtable(L, static_cast<int>(distinct.size()), 0);
  for (int position = 0; const uint32_t member : distinct) {
    push_raw(L, rows.value(member));
    lua_rawseti(L, -2, ++position);
  }
  lua_setfield(L, -2, "values");
  set_boolean(L, "more_values", has_more);
}

/// Pushes the facts that a line shows: facts of the group's first row, and common facts of its rows.
void push_group(lua_State* L, const LeafGroups& groups, size_t group) {
  const LeafRows& rows = *groups.rows;
  const std::vector<uint32_t> members = groups.members(group);
  push_facts(L, rows, members[0]);
  set_unsigned(L, "count", members.size());
  const Value& first = rows.value(members[0]);
  if (!first.is(Value::Kind::tensor)) {
    if (problem_with(first).empty()) set_values(L, rows, members);
    return;
  }
  TensorTotals totals;
  Shape low = first.as_tensor().shape();
  Shape high = low;
  for (const uint32_t member : members) {
    const Value& value = rows.value(member);
    // The tree may have changed since the rows were grouped.
    if (!value.is(Value::Kind::tensor) || value.as_tensor().shape().size() != low.size()) continue;
    totals.add(value.as_tensor());
    for (size_t dim = 0; dim < low.size(); ++dim) {
      low[dim] = std::min(low[dim], value.as_tensor().shape()[dim]);
      high[dim] = std::max(high[dim], value.as_tensor().shape()[dim]);
    }
  }
  set_unsigned(L, "bytes", totals.bytes);
  set_field(L, "shape", shape_text(low, high));
}

/// Calls the function at 2 with a label and the table at the top, which it pops.
void call_for_line(lua_State* L, size_t indent, std::string_view label) {
  lua_pushvalue(L, 2);
  lua_pushnumber(L, static_cast<double>(indent));
  push(L, label);
  lua_pushvalue(L, -4);
  lua_call(L, 3, 0);
  lua_pop(L, 1);
}

/// The parts of a folded name: dots inside braces do not count.
size_t part_count(std::string_view name) {
  size_t parts = 1;
  int depth = 0;
  for (const char c : name) {
    if (c == '{' || c == '}') depth += c == '{' ? 1 : -1;
    if (c == '.' && depth == 0) ++parts;
  }
  return parts;
}

/// `groups:outline(visit)`: calls visit(indent, label, group) for each line. The group of a container has
/// only `tensors`, `bytes`, and the `class` of a record.
int outline_of(lua_State* L) {
  const auto groups = check<LeafGroups>(L, 1);
  if (!lua_isfunction(L, 2)) fail_type(L, 2, "function");
  OutlineVisitor visitor;
  visitor.entry = [&](size_t indent, std::string_view label, size_t entry) {
    push_group(L, *groups, entry);
    call_for_line(L, indent, label);
  };
  visitor.container = [&](size_t indent, std::string_view label, std::span<const uint32_t> entries,
                          std::string_view name) {
    TensorTotals totals;
    for (const uint32_t entry : entries) {
      for (const uint32_t member : groups->members(entry)) {
        const Value& value = groups->rows->value(member);
        if (value.is(Value::Kind::tensor)) totals.add(value.as_tensor());
      }
    }
    lua_createtable(L, 0, 3);
    set_totals(L, totals);
    const size_t first = groups->rows->leaf(groups->members(entries.front()).front());
    const Object* record = groups->rows->table().record_around(first, part_count(name));
    if (record != nullptr) set_field(L, "class", record->type);
    call_for_line(L, indent, label);
  };
  outline({groups->size(), [&](size_t group) { return groups->name(group); }}, visitor);
  return 0;
}

/// `groups:each(visit)`: calls visit(0, name, group) for each group.
int each_group(lua_State* L) {
  const auto groups = check<LeafGroups>(L, 1);
  if (!lua_isfunction(L, 2)) fail_type(L, 2, "function");
  for (size_t i = 0; i < groups->size(); ++i) {
    push_group(L, *groups, i);
    call_for_line(L, 0, groups->name(i));
  }
  return 0;
}

// --- functions

/// `cbk.leaf_rows(tree, pattern)`
int leaf_rows(lua_State* L) {
  std::optional<std::string_view> pattern;
  if (!lua_isnoneornil(L, 2)) pattern = check_string(L, 2);
  push(L, std::make_shared<LeafRows>(to_value(L, 1), pattern));
  return 1;
}

/// `cbk.key_numbers(key)`
int key_numbers(lua_State* L) {
  KeyNumbers numbers(check_string(L, 1));
  lua_newtable(L);
  int count = 0;
  while (const auto range = numbers.next()) {
    for (const size_t position : {range->first + 1, range->second}) {
      lua_pushnumber(L, static_cast<double>(position));
      lua_rawseti(L, -2, ++count);
    }
  }
  return 1;
}

/// `cbk.fold_keys(keys, signatures)`
int fold_keys(lua_State* L) {
  for (const int index : {1, 2}) {
    if (!lua_istable(L, index)) fail_type(L, index, "table");
  }
  const auto text_at = [L](int table, size_t i) {
    lua_rawgeti(L, table, static_cast<int>(i) + 1);
    std::string text(check_string(L, -1));
    lua_pop(L, 1);
    return text;
  };
  const KeyFold fold(
      lua_objlen(L, 1), [&](size_t i) { return shown_key(text_at(1, i)); },
      [&](size_t i) { return text_at(2, i); });
  lua_createtable(L, static_cast<int>(fold.size()), 0);
  for (size_t group = 0; group < fold.size(); ++group) {
    lua_createtable(L, 0, 2);
    set_field(L, "name", fold.name(group));
    const auto rows = fold.rows(group);
    lua_createtable(L, static_cast<int>(rows.size()), 0);
    for (int position = 0; const uint32_t row : rows) {
      lua_pushnumber(L, row + 1.0);
      lua_rawseti(L, -2, ++position);
    }
    lua_setfield(L, -2, "members");
    lua_rawseti(L, -2, static_cast<int>(group) + 1);
  }
  return 1;
}

}  // namespace

std::string LeafGroups::name(size_t group) const {
  return fold ? fold->name(group) : shown_key(rows->path(group));
}

void bind_rows(lua_State* L) {
  static const luaL_Reg row_methods[] = {{"path", guarded<row_path>},
                                         {"value", guarded<row_value<false>>},
                                         {"raw", guarded<row_value<true>>},
                                         {"find", guarded<find_row>},
                                         {"earlier", guarded<earlier_rows>},
                                         {"ties", guarded<ties_of_row>},
                                         {"totals", guarded<totals>},
                                         {"groups", guarded<groups_of>},
                                         {"choose", guarded<choose_rows>},
                                         {"in_natural_order", guarded<rows_in_natural_order>},
                                         {nullptr, nullptr}};
  static const luaL_Reg row_metamethods[] = {{"__len", guarded<row_count>}, {nullptr, nullptr}};
  register_type<LeafRows>(L, {row_methods, row_metamethods, guarded<row_at>});
  static const luaL_Reg group_methods[] = {
      {"outline", guarded<outline_of>}, {"each", guarded<each_group>}, {nullptr, nullptr}};
  register_type<LeafGroups>(L, {group_methods, nullptr, nullptr});
  static const luaL_Reg functions[] = {{"leaf_rows", guarded<leaf_rows>},
                                       {"fold_keys", guarded<fold_keys>},
                                       {"key_numbers", guarded<key_numbers>},
                                       {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
