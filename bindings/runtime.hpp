// The bridge between C++ and Lua. A fixed vocabulary: `check` raises an error for a wrong argument, `opt`
// uses a default for an absent one, `is` tests, `push` passes values to Lua, and `guarded` wraps every C
// function that Lua can call.
//
// Ownership: a userdata holds one shared_ptr. Pushing a node that Lua already holds gives the same Lua value
// again (a weak registry by address), so that `==`, table keys and ties behave as in Python. Everything here
// runs on the thread of its Lua state.
#pragma once

#include <lua.hpp>

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/tensor/tensor.hpp"
#include "host/value/value.hpp"

namespace cbk::lua {

// --- errors

/// The Lua form of an exception: a table with `code`, the parts of the error (ErrorParts; lists as lists),
/// and `where`.
/// Its text, made from the parts, is `message` and the result of tostring.
struct Failure {
  std::string code;
  ErrorParts parts;
};

/// The failure of the exception that is being handled.
Failure current_failure();

/// Pushes the error table; `where` is "file:line" of the Lua code that called the running C function, if
/// known.
void push_failure(lua_State* L, const Failure& failure);

/// The parts in the fields of the table at `index`; only texts are read.
ErrorParts parts_at(lua_State* L, int index);

/// Sets the advice of `exists` errors: a command has an option to replace files, Lua code has
/// `overwrite = true` (the default advice).
void set_overwrite_advice(lua_State* L, std::string_view advice);

/// The failure in the error value of a protected call (one of our tables, or any other value).
Failure failure_at(lua_State* L, int index);

/// A C function for Lua from one that may throw. The Lua error is raised only after the catch block has
/// ended.
template <int (*Body)(lua_State*)>
int guarded(lua_State* L) {
  {
    std::optional<Failure> failure;
    try {
      return Body(L);
    } catch (const std::exception&) {
      failure = current_failure();
    }
    push_failure(L, *failure);
  }
  return lua_error(L);
}

/// "bad argument #2 to 'Tensor:slice' (…)", much like Lua's own; arguments of a method count from after the
/// object.
[[noreturn]] void fail_argument(lua_State* L, int index, std::string_view what);
/// The same, "Tensor expected, got number".
[[noreturn]] void fail_type(lua_State* L, int index, std::string_view expected);

/// Error `key`: the object `subject` has no member `name`. Suggests similar names, then adds `advice`.
[[noreturn]] void fail_member(std::string_view subject, std::string_view name,
                              const std::vector<std::string>& known, std::string_view advice = {});
/// The names of the methods of the object at `index`.
std::vector<std::string> method_names(lua_State* L, int index);

/// Calls `cbk.warn`, which a command may have replaced (--quiet, --json).
void warn(lua_State* L, std::string_view text);

/// "number", "Tensor", "int64", …
std::string type_name(lua_State* L, int index);

// --- types

/// The Lua-visible name of T: specialised beside each type.
template <typename T>
struct TypeName;
template <>
struct TypeName<Dict> {
  static constexpr const char* value = "Dict";
};
template <>
struct TypeName<Sequence> {
  static constexpr const char* value = "List";
};
template <>
struct TypeName<const TensorLeaf> {
  static constexpr const char* value = "Tensor";
};
template <>
struct TypeName<const Value> {
  static constexpr const char* value = "Value";
};

template <typename T>
struct Box {
  std::shared_ptr<T> object;  // empty after close()
};

/// Sets the functions (of a table that ends with nullptr) in the table at the top. `owner`, such as "cbk.fs."
/// or "Tensor:", begins their names in messages.
void set_functions(lua_State* L, const luaL_Reg* functions, std::string_view owner = "cbk.");
/// Sets `name` to a table of functions in the module's table at the top.
void set_group(lua_State* L, const char* name, const luaL_Reg* functions);
/// Makes the function `name` from the C function and the `upvalues` at the top, which it pops, and pushes it.
/// Its own upvalues begin at 2: the first is the name, for messages.
void push_function(lua_State* L, const char* name, lua_CFunction function, int upvalues = 0);

/// All functions of the tables as one list that ends with nullptr.
std::vector<luaL_Reg> joined(std::initializer_list<const luaL_Reg*> tables);

struct TypeSpec {
  const luaL_Reg* methods = nullptr;      // found by name before `index` is asked
  const luaL_Reg* metamethods = nullptr;  // __tostring, __len, … and `__eq` instead of identity
  lua_CFunction index = nullptr;          // any other key
};

namespace detail {
void make_metatable(lua_State* L, const char* name, const TypeSpec& spec, lua_CFunction collect,
                    lua_CFunction equal, lua_CFunction tostring);
void* find_userdata(lua_State* L, int index, const char* name);  // nullptr: another type
void* new_userdata(lua_State* L, size_t size);
void set_metatable(lua_State* L, const char* name);
/// Pushes the value known for `node` if it has this type.
bool push_known(lua_State* L, const void* node, const char* name);
void remember(lua_State* L, const void* node);  // the value on the top
void forget(lua_State* L, const void* node);
[[noreturn]] void fail_closed(const char* name);
}  // namespace detail

template <typename T>
int collect_box(lua_State* L) {
  // The box stays usable, but empty: a table with weak keys refers to it until the collector's next cycle.
  if (void* memory = detail::find_userdata(L, 1, TypeName<T>::value))
    static_cast<Box<T>*>(memory)->object.reset();
  return 0;
}

template <typename T>
int equal_boxes(lua_State* L) {
  auto* a = static_cast<Box<T>*>(detail::find_userdata(L, 1, TypeName<T>::value));
  auto* b = static_cast<Box<T>*>(detail::find_userdata(L, 2, TypeName<T>::value));
  lua_pushboolean(L, a != nullptr && b != nullptr && a->object == b->object);
  return 1;
}

template <typename T>
int describe_box(lua_State* L) {
  auto* box = static_cast<Box<T>*>(detail::find_userdata(L, 1, TypeName<T>::value));
  lua_pushfstring(L, box != nullptr && box->object ? "%s" : "%s (closed)", TypeName<T>::value);
  return 1;
}

template <typename T>
bool is_closed(lua_State* L, int index) {
  auto* box = static_cast<Box<T>*>(detail::find_userdata(L, index, TypeName<T>::value));
  return box != nullptr && !box->object;
}

/// Gives T its metatable: __gc, __eq, __tostring, __name and __index, as for every type, plus those of
/// `spec`.
template <typename T>
void register_type(lua_State* L, const TypeSpec& spec) {
  detail::make_metatable(L, TypeName<T>::value, spec, collect_box<T>, equal_boxes<T>, describe_box<T>);
}

template <typename T>
bool is(lua_State* L, int index) {
  return detail::find_userdata(L, index, TypeName<T>::value) != nullptr;
}

/// The object, or nullptr if the argument has another type. A closed one is an error.
template <typename T>
std::shared_ptr<T> test(lua_State* L, int index) {
  auto* box = static_cast<Box<T>*>(detail::find_userdata(L, index, TypeName<T>::value));
  if (box == nullptr) return nullptr;
  if (!box->object) detail::fail_closed(TypeName<T>::value);
  return box->object;
}

template <typename T>
std::shared_ptr<T> check(lua_State* L, int index) {
  auto object = test<T>(L, index);
  if (!object) fail_type(L, index, TypeName<T>::value);
  return object;
}

template <typename T>
void push(lua_State* L, std::shared_ptr<T> object) {
  const void* node = object.get();
  if (detail::push_known(L, node, TypeName<T>::value)) return;
  new (detail::new_userdata(L, sizeof(Box<T>))) Box<T>{std::move(object)};
  detail::set_metatable(L, TypeName<T>::value);
  detail::remember(L, node);
}

/// `object:close()`: releases the object now; any later use is an error.
template <typename T>
int close_box(lua_State* L) {
  auto* box = static_cast<Box<T>*>(detail::find_userdata(L, 1, TypeName<T>::value));
  if (box == nullptr) fail_type(L, 1, TypeName<T>::value);
  if (box->object) detail::forget(L, box->object.get());
  box->object.reset();
  return 0;
}

// --- plain arguments

/// Whole numbers: a Lua number, or an int64 or uint64 cdata that fits; nullopt for anything else.
std::optional<int64_t> to_integer(lua_State* L, int index);
bool is_int64(lua_State* L, int index);   // cdata
bool is_uint64(lua_State* L, int index);  // cdata
uint64_t cdata_bits(lua_State* L, int index);

int64_t check_integer(lua_State* L, int index, int64_t min = INT64_MIN, int64_t max = INT64_MAX);
int64_t opt_integer(lua_State* L, int index, int64_t otherwise, int64_t min = INT64_MIN,
                    int64_t max = INT64_MAX);
double check_number(lua_State* L, int index);  // a number or a 64-bit cdata
std::string_view check_string(lua_State* L, int index);
std::filesystem::path check_path(lua_State* L, int index);
/// A Lua table or a List of integers.
std::vector<int64_t> check_integers(lua_State* L, int index);
DType check_dtype(lua_State* L, int index);

void push(lua_State* L, std::string_view text);
/// A number if that is exact, else an int64 cdata.
void push_integer(lua_State* L, int64_t value);
void push_unsigned(lua_State* L, uint64_t value);
void push_integers(lua_State* L, const std::vector<int64_t>& integers);
void push_strings(lua_State* L, const std::vector<std::string>& texts);
/// A typed FFI pointer such as "const float*".
void push_pointer(lua_State* L, const char* ctype, const void* address);

/// Sets `name` in the table at the top.
template <typename T>
void set_field(lua_State* L, const char* name, const T& value) {
  push(L, std::string_view(value));
  lua_setfield(L, -2, name);
}
void set_integer(lua_State* L, const char* name, uint64_t value);
void set_number(lua_State* L, const char* name, double value);
void set_boolean(lua_State* L, const char* name, bool value);

// --- options

/// Named options in a table (or nil: none). An unknown name is an error that lists the nearest known ones.
class Options {
 public:
  Options(lua_State* L, int index, std::initializer_list<std::string_view> known);

  [[nodiscard]] bool has(const char* name) const;
  [[nodiscard]] bool flag(const char* name, bool otherwise = false) const;
  [[nodiscard]] std::string text(const char* name, std::string_view otherwise = "") const;
  [[nodiscard]] std::optional<int64_t> integer(const char* name, int64_t min, int64_t max) const;
  [[nodiscard]] double number(const char* name, double otherwise) const;
  /// A byte count, or a text such as "512MiB".
  [[nodiscard]] std::optional<uint64_t> size(const char* name) const;
  [[nodiscard]] DType dtype(const char* name, DType otherwise) const;
  /// Pushes the option's value (nil if absent).
  void push(const char* name) const;

 private:
  [[noreturn]] void fail_option(const char* name, std::string_view expected) const;
  lua_State* L_;
  int index_;  // 0: no table
};

// --- values

/// The Lua form of a value: a plain type if Lua has it, else a Dict, List, Tensor or Value.
void push(lua_State* L, const Value& value);
/// The value with its exact kind and spelling, boxed.
void push_raw(lua_State* L, const Value& value);
void push_null(lua_State* L);
void push(lua_State* L, const Tensor& tensor);

/// A Lua value as a Value; tables become lists or (sorted) dicts. Errors name the place inside: "at
/// layers[2].size".
Value to_value(lua_State* L, int index);
/// Integers without a fraction stay integers.
Value number_value(double number);

}  // namespace cbk::lua
