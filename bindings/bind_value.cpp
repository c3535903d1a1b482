// Value: scalars that Lua has no type for (complex, bytes, objects, huge ints), null, and any value with its
// exact kind and spelling (`cbk.raw`). Also the translation of every value between the host and Lua.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "bindings/kind.hpp"
#include "bindings/modules.hpp"
#include "bindings/variable_methods.hpp"
#include "host/base/bytes.hpp"
#include "host/value/unfolding.hpp"

namespace cbk::lua {
namespace {

char null_key;  // registry: the one null

std::shared_ptr<const Value> this_value(lua_State* L) {
  return check<const Value>(L, 1);
}

void push_plain(lua_State* L, const Value& value) {
  if (value.is(Value::Kind::complex)) {
    lua_createtable(L, 2, 0);
    lua_pushnumber(L, value.as_complex().real());
    lua_rawseti(L, -2, 1);
    lua_pushnumber(L, value.as_complex().imag());
    lua_rawseti(L, -2, 2);
  } else if (value.is(Value::Kind::bytes)) {
    push(L, std::string_view(value.as_bytes().data));
  } else if (value.is(Value::Kind::none) || value.is(Value::Kind::object) ||
             (value.is(Value::Kind::integer) && !value.as_integer().fits)) {
    lua_pushnil(L);
  } else {
    push(L, value);
  }
}

int value_index(lua_State* L) {
  const Value& value = *this_value(L);
  const std::string_view key = lua_type(L, 2) == LUA_TSTRING ? check_string(L, 2) : std::string_view();
  if (key == "kind") {
    push(L, kind_of(value));
  } else if (key == "value") {
    push_plain(L, value);
  } else if (key == "type" && value.is(Value::Kind::object)) {
    push(L, std::string_view(value.as_object().type));
  } else if (key == "repr" && value.is(Value::Kind::object)) {
    push(L, std::string_view(value.as_object().repr));
  } else if (key == "state" && value.is(Value::Kind::object)) {
    push(L, value.as_object().state);
  } else {
    lua_pushnil(L);
  }
  return 1;
}

std::string describe(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::none:
      return "null";
    case Value::Kind::real:
      if (value.as_real().spelling) return *value.as_real().spelling;
      if (std::isnan(value.as_double())) return "nan";  // whatever its sign
      return fmt::format("{}", value.as_double());
    case Value::Kind::integer:
      return value.as_integer().digits ? *value.as_integer().digits : std::to_string(value.as_int());
    case Value::Kind::complex:
      return fmt::format("({}{:+}j)", value.as_complex().real(), value.as_complex().imag());
    case Value::Kind::bytes:
      return "b" + quote(value.as_bytes().data);
    case Value::Kind::string:
      return value.as_string();
    case Value::Kind::object:
      return shown(value.as_object().repr.empty() ? fmt::format("<{}>", value.as_object().type)
                                                  : value.as_object().repr);
    default:
      return key_text(value);
  }
}

int value_tostring(lua_State* L) {
  push(L, std::string_view(describe(*this_value(L))));
  return 1;
}

int value_eq(lua_State* L) {
  const auto a = test<const Value>(L, 1);
  const auto b = test<const Value>(L, 2);
  lua_pushboolean(L, a && b && a->equals(*b));
  return 1;
}

int make_float(lua_State* L) {
  push_raw(L, Value(check_number(L, 1)));
  return 1;
}

int make_int(lua_State* L) {
  if (lua_type(L, 1) == LUA_TSTRING) {
    push_raw(L, Value::integer(check_string(L, 1)));
  } else {
    push_raw(L,
             is_uint64(L, 1) ? Value::integer(std::to_string(cdata_bits(L, 1))) : Value(check_integer(L, 1)));
  }
  return 1;
}

int make_bytes(lua_State* L) {
  push(L, Value::bytes(std::string(check_string(L, 1))));
  return 1;
}

int make_complex(lua_State* L) {
  push(L, Value(std::complex<double>(check_number(L, 1), check_number(L, 2))));
  return 1;
}

/// A number of any kind as a Lua number, or an error if that would round.
int exact(lua_State* L) {
  if (lua_type(L, 1) == LUA_TNUMBER) {
    lua_settop(L, 1);
    return 1;
  }
  if (is_uint64(L, 1) && cdata_bits(L, 1) > (1ULL << 53)) {
    fail(Errc::value, "{} has no exact Lua number (it would be rounded)", cdata_bits(L, 1));
  }
  constexpr int64_t limit = int64_t{1} << 53;
  const int64_t value = check_integer(L, 1);
  if (value < -limit || value > limit)
    fail(Errc::value, "{} has no exact Lua number (it would be rounded)", value);
  lua_pushnumber(L, static_cast<double>(value));
  return 1;
}

}  // namespace

std::string_view kind_of(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::none:
      return "none";
    case Value::Kind::sequence: {
      constexpr std::string_view names[] = {"list", "tuple", "set", "frozenset", "deque", "torch_size"};
      return names[static_cast<size_t>(value.as_sequence().kind)];
    }
    case Value::Kind::dict: {
      constexpr std::string_view names[] = {"dict", "ordereddict", "counter", "defaultdict"};
      return names[static_cast<size_t>(value.as_dict().kind)];
    }
    case Value::Kind::tensor:
      return role_name(value.as_leaf().role);
    case Value::Kind::object:
      return "object";
    case Value::Kind::boolean:
      return "bool";
    case Value::Kind::integer:
      return "int";
    case Value::Kind::real:
      return "float";
    case Value::Kind::complex:
      return "complex";
    case Value::Kind::string:
      return "str";
    case Value::Kind::bytes:
      return value.as_bytes().is_mutable ? "bytearray" : "bytes";
  }
  return "value";
}

std::string_view role_name(TensorLeaf::Role role) {
  constexpr std::string_view names[] = {"tensor", "parameter", "ndarray", "np_scalar"};
  return names[static_cast<size_t>(role)];
}

Value number_value(double number) {
  constexpr double limit = 9007199254740992.0;
  const bool whole = std::floor(number) == number && std::abs(number) <= limit;
  if (whole && !(number == 0 && std::signbit(number))) return Value(static_cast<int64_t>(number));
  return Value(number);
}

void push_null(lua_State* L) {
  lua_pushlightuserdata(L, &null_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
}

void push_raw(lua_State* L, const Value& value) {
  if (value.is_none()) return push_null(L);
  if (value.is(Value::Kind::sequence) || value.is(Value::Kind::dict) || value.is(Value::Kind::tensor)) {
    return push(L, value);
  }
  const void* node = value.identity();
  if (node != nullptr && detail::push_known(L, node, TypeName<const Value>::value)) return;
  push(L, std::make_shared<const Value>(value));
  if (node != nullptr) detail::remember(L, node);
}

void push(lua_State* L, const Value& value) {
  luaL_checkstack(L, 8, "too many values");
  switch (value.kind()) {
    case Value::Kind::none:
      return push_null(L);
    case Value::Kind::boolean:
      lua_pushboolean(L, value.as_bool());
      return;
    case Value::Kind::integer: {
      const Integer& integer = value.as_integer();
      if (integer.fits) return push_integer(L, integer.value);
      const std::string& digits = *integer.digits;
      errno = 0;
      const uint64_t bits = std::strtoull(digits.c_str(), nullptr, 10);
      if (errno == 0 && std::to_string(bits) == digits) return push_unsigned(L, bits);
      return push_raw(L, value);
    }
    case Value::Kind::real:
      lua_pushnumber(L, value.as_double());
      return;
    case Value::Kind::string:
      return push(L, std::string_view(value.as_string()));
    case Value::Kind::sequence:
      return push(L, value.node<Sequence>());
    case Value::Kind::dict:
      return push(L, value.node<Dict>());
    case Value::Kind::tensor:
      return push(L, value.node<const TensorLeaf>());
    case Value::Kind::complex:
    case Value::Kind::bytes:
    case Value::Kind::object:
      return push_raw(L, value);
  }
}

namespace {

/// Lua tables as lists and dicts; keeps track of the place for messages.
class Reader {
 public:
  explicit Reader(lua_State* L) : L_(L) {}

  Value read(int index) {
    switch (lua_type(L_, index)) {
      case LUA_TBOOLEAN:
        return Value(lua_toboolean(L_, index) != 0);
      case LUA_TNUMBER:
        return number_value(lua_tonumber(L_, index));
      case LUA_TSTRING:
        return Value(check_string(L_, index));
      case LUA_TTABLE:
        return read_table(index);
      default:
        break;
    }
    if (auto dict = test<Dict>(L_, index)) return dict;
    if (auto list = test<Sequence>(L_, index)) return list;
    if (auto leaf = test<const TensorLeaf>(L_, index)) return leaf;
    if (auto computed = test<compute::Variable>(L_, index)) {
      return std::make_shared<const TensorLeaf>(TensorLeaf{computed->to_tensor()});
    }
    if (auto value = test<const Value>(L_, index)) return *value;
    if (is_uint64(L_, index)) return Value::integer(std::to_string(cdata_bits(L_, index)));
    if (is_int64(L_, index)) return Value(static_cast<int64_t>(cdata_bits(L_, index)));
    if (lua_isnone(L_, index)) fail_argument(L_, index, "a value expected, got nothing");
    fail_here(fmt::format("{} cannot be stored in a tree", lua_isnil(L_, index)
                                                               ? "nil (use cbk.null for Python's None)"
                                                               : "a " + type_name(L_, index)));
  }

 private:
  Value read_table(int index) {
    luaL_checkstack(L_, 8, "a table nested too deeply");
    if (++depth_ > 200) fail_here("tables nested deeper than 200 levels (or a table that holds itself)");
    const size_t length = lua_objlen(L_, index);
    size_t count = 0;
    lua_pushnil(L_);
    while (lua_next(L_, index) != 0) {
      ++count;
      lua_pop(L_, 1);
    }
    if (count == 0) fail_here("an empty table may be a list or a dict; write cbk.list() or cbk.dict()");
    if (length > 0 && count != length)
      fail_here("expected a list or a dict, got a table that mixes positions and names");
    Value value;
    unfolding_.enter(lua_topointer(L_, index), count,
                     [&] { value = length > 0 ? read_list(index, length) : read_dict(index); });
    --depth_;
    return value;
  }

  Value read_list(int index, size_t length) {
    std::vector<Value> items;
    items.reserve(length);
    for (size_t i = 1; i <= length; ++i) {
      lua_rawgeti(L_, index, static_cast<int>(i));
      items.push_back(read_inside(fmt::format("[{}]", i)));
    }
    return Value::list(std::move(items));
  }

  Value read_dict(int index) {
    std::vector<std::string> texts;
    std::vector<double> numbers;
    lua_pushnil(L_);
    while (lua_next(L_, index) != 0) {
      lua_pop(L_, 1);
      if (lua_type(L_, -1) == LUA_TSTRING) {
        texts.emplace_back(check_string(L_, -1));
      } else if (lua_type(L_, -1) == LUA_TNUMBER) {
        numbers.push_back(lua_tonumber(L_, -1));
      } else {
        fail_here(fmt::format("a {} cannot be a key here", type_name(L_, -1)));
      }
    }
    std::sort(texts.begin(), texts.end());
    std::sort(numbers.begin(), numbers.end());
    auto dict = std::make_shared<Dict>();
    dict->reserve(texts.size() + numbers.size());
    for (double number : numbers) {
      lua_pushnumber(L_, number);
      lua_rawget(L_, index);
      dict->set(number_value(number), read_inside(fmt::format("[{}]", number)));
    }
    for (const std::string& text : texts) {
      push(L_, std::string_view(text));
      lua_rawget(L_, index);
      dict->set(text, read_inside("." + text));
    }
    return dict;
  }

  Value read_inside(const std::string& part) {
    const size_t length = place_.size();
    place_ += part;
    Value value = read(lua_gettop(L_));
    lua_pop(L_, 1);
    place_.resize(length);
    return value;
  }

  [[noreturn]] void fail_here(const std::string& what) const {
    if (place_.empty()) fail(Errc::value, "{}", what);
    fail(Errc::value, "at {}: {}", quote(place_[0] == '.' ? place_.substr(1) : place_), what);
  }

  lua_State* L_;
  Unfolding unfolding_;
  int depth_ = 0;
  std::string place_;
};

}  // namespace

Value to_value(lua_State* L, int index) {
  return Reader(L).read(index < 0 && index > LUA_REGISTRYINDEX ? lua_gettop(L) + index + 1 : index);
}

void bind_value(lua_State* L) {
  static const luaL_Reg metamethods[] = {
      {"__tostring", guarded<value_tostring>}, {"__eq", guarded<value_eq>}, {nullptr, nullptr}};
  register_type<const Value>(L, {.metamethods = metamethods, .index = guarded<value_index>});

  lua_pushlightuserdata(L, &null_key);
  push(L, std::make_shared<const Value>());
  lua_rawset(L, LUA_REGISTRYINDEX);
  push_null(L);
  lua_setfield(L, -2, "null");

  static const luaL_Reg functions[] = {{"float", guarded<make_float>}, {"int", guarded<make_int>},
                                       {"bytes", guarded<make_bytes>}, {"complex", guarded<make_complex>},
                                       {"exact", guarded<exact>},      {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
