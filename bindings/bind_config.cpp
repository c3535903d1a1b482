// cbk.config: YAML and JSON to Dicts and back.
#include <algorithm>

#include "bindings/modules.hpp"
#include "host/base/transaction.hpp"
#include "host/config/config.hpp"
#include "host/value/json.hpp"

namespace cbk::lua {
namespace {

/// Reads with `read(warn)` and passes the warnings on at the end.
template <typename Read>
Value read_aloud(lua_State* L, Read&& read) {
  std::vector<std::string> warnings;
  Value config = read([&](std::string warning) { warnings.push_back(std::move(warning)); });
  for (const std::string& warning : warnings) warn(L, warning);
  return config;
}

int load(lua_State* L) {
  push(L, read_aloud(L, [&](const ConfigWarning& note) { return load_config(check_path(L, 1), note); }));
  return 1;
}

int parse(lua_State* L) {
  push(L, read_aloud(L, [&](const ConfigWarning& note) {
         return parse_config(check_string(L, 1), parse_config_format(check_string(L, 2)), note);
       }));
  return 1;
}

ConfigWriteOptions write_options(const Options& options) {
  ConfigWriteOptions out;
  out.indent = static_cast<int>(options.integer("indent", 2, 9).value_or(out.indent));
  out.sort_keys = options.flag("sort");
  return out;
}

int dump(lua_State* L) {
  const Options options(L, 3, {"indent", "sort"});
  push(L, std::string_view(
              dump_config(to_value(L, 1), parse_config_format(check_string(L, 2)), write_options(options))));
  return 1;
}

int save(lua_State* L) {
  const Options options(L, 3, {"overwrite", "format", "indent", "sort"});
  const fs::path path = check_path(L, 2);
  const std::string format = options.text("format");
  const auto by_name = config_format_of(path);
  if (format.empty() && !by_name) {
    fail(Errc::usage, R"(cannot tell the format from the name '{}'; pass format = "yaml" or "json")",
         path.string());
  }
  const std::string text = within(path.string(), [&] {
    return dump_config(to_value(L, 1), format.empty() ? *by_name : parse_config_format(format),
                       write_options(options));
  });
  write_file(path, text, options.flag("overwrite"));
  return 0;
}

/// `cbk.config.line(path, { "trainer", "init" })`: the line of a field, or nil.
int line(lua_State* L) {
  const fs::path path = check_path(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  std::vector<std::string> keys;
  for (size_t i = 1; i <= lua_objlen(L, 2); ++i) {
    lua_rawgeti(L, 2, static_cast<int>(i));
    keys.emplace_back(check_string(L, -1));
    lua_pop(L, 1);
  }
  const auto found = line_of_field(path, keys);
  if (!found) return 0;
  lua_pushinteger(L, static_cast<lua_Integer>(*found));
  return 1;
}

/// `cbk.json(value, { indent = })`: JSON for machines; `python`: NaN and Infinity are written; `limit`: of
/// its bytes.
int json(lua_State* L) {
  const Options options(L, 2, {"indent", "python", "ascii", "shown", "limit"});
  JsonWriteOptions out;
  out.indent = static_cast<int>(options.integer("indent", 0, 9).value_or(-1));
  out.python = options.flag("python");
  out.ascii = options.flag("ascii");
  out.shown = options.flag("shown");
  if (const auto limit = options.integer("limit", 1, 1LL << 30)) out.limit = static_cast<size_t>(*limit);
  push(L, std::string_view(to_json(to_value(L, 1), out)));
  return 1;
}

/// `cbk.parse_json(text)`: of any size that its tree has memory for.
int read_json(lua_State* L) {
  push(L, parse_json(check_string(L, 1)));
  return 1;
}

}  // namespace

void bind_config(lua_State* L) {
  static const luaL_Reg functions[] = {{"load", guarded<load>}, {"parse", guarded<parse>},
                                       {"dump", guarded<dump>}, {"save", guarded<save>},
                                       {"line", guarded<line>}, {nullptr, nullptr}};
  set_group(L, "config", functions);
  static const luaL_Reg module_functions[] = {
      {"json", guarded<json>}, {"parse_json", guarded<read_json>}, {nullptr, nullptr}};
  set_functions(L, module_functions);
}

}  // namespace cbk::lua
