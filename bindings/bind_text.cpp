// Small functions over text: byte sizes, globs, the nearest names, pictures, and errors.
#include <cstdio>

#include "bindings/modules.hpp"
#include "host/base/bytes.hpp"
#include "host/base/glob.hpp"
#include "host/base/message.hpp"
#include "host/base/png.hpp"
#include "host/tensor/digest.hpp"
#include "host/value/error_json.hpp"

namespace cbk::lua {

template <>
struct TypeName<const Glob> {
  static constexpr const char* value = "Glob";
};

namespace {

int parse_size_text(lua_State* L) {
  push_unsigned(L, lua_type(L, 1) == LUA_TNUMBER ? static_cast<uint64_t>(check_integer(L, 1, 0))
                                                 : parse_size(check_string(L, 1)));
  return 1;
}

int format_size_text(lua_State* L) {
  push(L, std::string_view(format_size(static_cast<uint64_t>(check_integer(L, 1, 0)))));
  return 1;
}

int match_glob(lua_State* L) {
  lua_pushboolean(L, check<const Glob>(L, lua_upvalueindex(2))->matches(check_string(L, 1)));
  return 1;
}

/// `cbk.glob(pattern, text)`: whether it matches. `cbk.glob(pattern)` returns a function that tests a text.
int glob(lua_State* L) {
  const auto pattern = std::make_shared<const Glob>(check_string(L, 1));
  if (lua_isnoneornil(L, 2)) {
    push(L, pattern);
    push_function(L, "a glob", guarded<match_glob>, 1);
  } else {
    lua_pushboolean(L, pattern->matches(check_string(L, 2)));
  }
  return 1;
}

int nearest_names(lua_State* L) {
  if (!lua_istable(L, 2)) fail_type(L, 2, "list of names");
  std::vector<std::string> names;
  const auto count = static_cast<int>(lua_objlen(L, 2));
  for (int i = 1; i <= count; ++i) {
    lua_rawgeti(L, 2, i);
    names.emplace_back(check_string(L, -1));
    lua_pop(L, 1);
  }
  push_strings(L, nearest(check_string(L, 1), names, static_cast<size_t>(opt_integer(L, 3, 3, 0, 1000))));
  return 1;
}

/// `cbk.hex(text)`: two lower-case digits per byte.
int hex(lua_State* L) {
  push(L, std::string_view(to_hex(as_bytes(check_string(L, 1)))));
  return 1;
}

/// `cbk.shown(text, lines)`: untrusted text for a terminal.
int shown_text(lua_State* L) {
  push(L, std::string_view(shown(check_string(L, 1), lua_toboolean(L, 2) != 0)));
  return 1;
}

/// `cbk.quote(text, limit)`: untrusted text for a message.
int quote_text(lua_State* L) {
  push(L,
       std::string_view(quote(check_string(L, 1), static_cast<size_t>(opt_integer(L, 2, 120, 1, 1 << 20)))));
  return 1;
}

/// `cbk.png(width, height, palette, pixels)`: the palette has three bytes for each colour.
int png_of(lua_State* L) {
  constexpr int64_t most = 1 << 15;
  const std::string_view bytes = check_string(L, 3);
  std::vector<Colour> palette;
  for (size_t i = 0; i + 3 <= bytes.size(); i += 3) {
    palette.push_back({static_cast<uint8_t>(bytes[i]), static_cast<uint8_t>(bytes[i + 1]),
                       static_cast<uint8_t>(bytes[i + 2])});
  }
  const std::string_view pixels = check_string(L, 4);
  push(L, std::string_view(
              png(check_integer(L, 1, 1, most), check_integer(L, 2, 1, most), palette, as_bytes(pixels))));
  return 1;
}

int print_warning(lua_State* L) {
  write_message(MessageKind::warning, one_line(check_string(L, 1)));
  return 0;
}

/// `cbk.fail(code, problem, parts)`
int raise(lua_State* L) {
  Failure failure{std::string(check_string(L, 1)), {}};
  if (!lua_isnoneornil(L, 3)) {
    if (!lua_istable(L, 3)) fail_type(L, 3, "table");
    failure.parts = parts_at(L, 3);
  }
  failure.parts.problem = check_string(L, 2);
  push_failure(L, failure);
  return lua_error(L);
}

/// `cbk.problem_text(problem)`: the text of any raised value.
int problem_text(lua_State* L) {
  push(L, std::string_view(text_of(failure_at(L, 1).parts)));
  return 1;
}

/// `cbk.error_json(problem)`: one line.
int error_json_of(lua_State* L) {
  const Failure failure = failure_at(L, 1);
  push(L, std::string_view(error_json(failure.code, failure.parts)));
  return 1;
}

/// `cbk.advise_overwrite(text)`
int advise_overwrite(lua_State* L) {
  set_overwrite_advice(L, check_string(L, 1));
  return 0;
}

}  // namespace

void warn(lua_State* L, std::string_view text) {
  const int top = lua_gettop(L);
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  lua_getfield(L, -1, "cbk.native");
  lua_getfield(L, -1, "warn");
  push(L, text);
  if (lua_pcall(L, 1, 0, 0) != 0) {
    const Failure failure = failure_at(L, -1);
    throw Error(Errc::internal, failure.parts).in("cbk.warn");
  }
  lua_settop(L, top);
}

void bind_text(lua_State* L) {
  register_type<const Glob>(L, {});
  static const luaL_Reg functions[] = {{"parse_size", guarded<parse_size_text>},
                                       {"format_size", guarded<format_size_text>},
                                       {"glob", guarded<glob>},
                                       {"nearest", guarded<nearest_names>},
                                       {"hex", guarded<hex>},
                                       {"shown", guarded<shown_text>},
                                       {"quote", guarded<quote_text>},
                                       {"png", guarded<png_of>},
                                       {"warn", guarded<print_warning>},
                                       {"fail", guarded<raise>},
                                       {"problem_text", guarded<problem_text>},
                                       {"error_json", guarded<error_json_of>},
                                       {"advise_overwrite", guarded<advise_overwrite>},
                                       {nullptr, nullptr}};
  set_functions(L, functions);
}

}  // namespace cbk::lua
