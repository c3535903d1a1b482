#include "host/app/script.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>

#include "bindings/job.hpp"
#include "bindings/modules.hpp"
#include "bindings/unfinished.hpp"
#include "host/app/confine.hpp"
#include "host/app/editor_module.hpp"
#include "host/app/limits.hpp"
#include "host/app/locations.hpp"
#include "host/app/report.hpp"
#include "host/app/signals.hpp"
#include "host/base/file.hpp"
#include "host/base/interrupt.hpp"
#include "host/base/stale.hpp"
#include "host/base/team.hpp"

namespace cbk::app {
namespace {

/// Calls what scripts/lib/cbk/ending.lua has for the end of a script, if it was loaded. false: it failed, or
/// Ctrl-C stopped it.
bool run_ending(lua_State* L) {
  const int top = lua_gettop(L);
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  lua_getfield(L, -1, "cbk.ending");
  bool is_fine = true;
  if (lua_istable(L, -1)) {
    lua_getfield(L, -1, "run");
    is_fine = lua_pcall(L, 0, 0, 0) == 0;
    if (!is_fine) report_error(name_of(Errc::internal), lua::failure_at(L, -1).parts);
  }
  lua_settop(L, top);
  return is_fine;
}

/// The exit code of a program that ends with `code`. Unfinished work is an error, unless the program failed
/// already.
int finished(lua_State* L, int code) {
  if (code != exit_ok) return code;
  if (!run_ending(L)) code = exit_failure;
  for (const std::string& problem : lua::unfinished(L)) {
    report_error(name_of(Errc::usage), {.problem = problem});
    code = exit_failure;
  }
  if (code == exit_ok) lua::remove_done_jobs();
  return code;
}

/// os.exit(code): Lua's own would not notice that output is lost.
int exit_program(lua_State* L) {
  int code = exit_ok;
  if (lua_isboolean(L, 1)) {
    code = lua_toboolean(L, 1) != 0 ? exit_ok : exit_failure;
  } else if (lua_isnumber(L, 1) != 0) {
    code = static_cast<int>(lua_tointeger(L, 1));
  }
  code = leave_team(finish_output(finished(L, code)));
  remove_temporaries();
  remove_empty_folders();
  if (!leaves_at_once) lua_close(L);
  std::exit(code);
}

/// Assigning or reading a global that nobody declared is probably a misspelt local, so it is an error here.
constexpr const char* lock_globals = R"(
setmetatable(_G, {
  __newindex = function(_, name)
    error(("the global '%s' is assigned, but not declared; is a 'local' missing?"):format(tostring(name)), 2)
  end,
  __index = function(_, name)
    error(("there is no global '%s'"):format(tostring(name)), 2)
  end,
})
)";

/// require "cbk.commands": the scripts of all commands, by name.
int open_commands_module(lua_State* L) {
  lua_newtable(L);
  for (const auto& [name, path] : commands(scripts_folder())) lua::set_field(L, name.c_str(), path.native());
  return 1;
}

std::string text_at(lua_State* L, int index) {
  size_t length = 0;
  const char* text = lua_tolstring(L, index, &length);
  return text == nullptr ? "" : std::string(text, length);
}

std::string field_at(lua_State* L, int index, const char* name) {
  lua_getfield(L, index, name);
  std::string text = lua_isstring(L, -1) ? text_at(L, -1) : "";
  lua_pop(L, 1);
  return text;
}

/// Pushes a module; false: an error is pushed instead.
bool push_module(lua_State* L, const char* name) {
  lua_getglobal(L, "require");
  lua_pushstring(L, name);
  return lua_pcall(L, 1, 1, 0) == 0;
}

/// Lua's own error in plain words (scripts/lib/cbk/mistakes.lua), if that is possible.
/// `code`: the text that ran, if it is known.
std::string in_words(lua_State* L, std::string message, const std::string& code) {
  const int top = lua_gettop(L);
  if (push_module(L, "cbk.mistakes")) {
    lua::push(L, std::string_view(message));
    lua::push(L, std::string_view(code));
    if (lua_pcall(L, 2, 1, 0) == 0) message = text_at(L, -1);
  }
  lua_settop(L, top);
  return message;
}

}  // namespace

int with_traceback(lua_State* L) {
  lua_createtable(L, 2, 0);
  lua_pushvalue(L, 1);
  lua_rawseti(L, -2, 1);
  luaL_traceback(L, L, nullptr, 1);
  lua_rawseti(L, -2, 2);
  return 1;
}

Interpreter::Interpreter(fs::path scripts) : L_(luaL_newstate()), scripts_(std::move(scripts)) {
  if (L_ == nullptr) fail(Errc::internal, "not enough memory for Lua");
  luaL_openlibs(L_);
  // Commands are short functions over many tables, which are slower when they are compiled.
  luaJIT_setmode(L_, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
  lua_getglobal(L_, "package");
  system_path_ = field_at(L_, -1, "path");
  lua::set_field(L_, "cpath", absolute_entries(field_at(L_, -1, "cpath")));
  lua_getfield(L_, -1, "preload");
  lua_pushcfunction(L_, lua::guarded<lua::open_native>);
  lua_setfield(L_, -2, "cbk.native");
  lua_pushcfunction(L_, lua::guarded<open_editor_module>);
  lua_setfield(L_, -2, "cbk.editor");
  lua_pushcfunction(L_, lua::guarded<open_commands_module>);
  lua_setfield(L_, -2, "cbk.commands");
  lua_pushcfunction(L_, lua::guarded<open_limits_module>);
  lua_setfield(L_, -2, "cbk.limits");
  lua_pop(L_, 2);
  lua_getglobal(L_, "os");
  lua_pushcfunction(L_, lua::guarded<exit_program>);
  lua_setfield(L_, -2, "exit");
  lua_pop(L_, 1);
  set_module_path("");
  install_signal_handlers(L_);
}

Interpreter::~Interpreter() {
  lua_close(L_);
}

void Interpreter::set_module_path(const fs::path& own) {
  lua_getglobal(L_, "package");
  lua::set_field(L_, "path", module_path(scripts_, own, system_path_));
  lua_pop(L_, 1);
}

void Interpreter::set_arguments(const std::string& name, const std::vector<std::string>& arguments) {
  lua_createtable(L_, static_cast<int>(arguments.size()), 1);
  lua::push(L_, std::string_view(name));
  lua_rawseti(L_, -2, 0);
  std::error_code ignored;
  lua::push(L_, std::string_view(fs::read_symlink("/proc/self/exe", ignored).native()));
  lua_rawseti(L_, -2, -1);  // as in Lua: the program itself
  int position = 0;
  for (const std::string& argument : arguments) {
    lua::push(L_, std::string_view(argument));
    lua_rawseti(L_, -2, ++position);
  }
  lua_setglobal(L_, "arg");
  luaL_checkstack(L_, static_cast<int>(arguments.size()) + 8, "too many arguments");
}

/// Turns LuaJIT's compiler on, for users' own code and for training (scripts/lib/cbk/compiler.lua).
bool Interpreter::start_compiler() {
  if (!push_module(L_, "cbk.compiler")) return false;
  lua_getfield(L_, -1, "start");
  lua_remove(L_, -2);
  return lua_pcall(L_, 0, 0, 0) == 0;
}

int Interpreter::load_text(const std::string& text, const std::string& chunk_name) {
  // A #! line is for the shell; the line feed stays, so that line numbers are right.
  const size_t begin = text.starts_with("#!") ? std::min(text.find('\n'), text.size()) : 0;
  return luaL_loadbufferx(L_, text.data() + begin, text.size() - begin, chunk_name.c_str(), "t");
}

void Interpreter::use_job(const std::string& folder, const std::vector<std::string>& command) {
  if (!push_module(L_, "cbk.job")) fail(Errc::internal, "{}", lua::failure_at(L_, -1).parts.problem);
  lua_getfield(L_, -1, folder.empty() ? "resume" : "plan");
  lua_createtable(L_, static_cast<int>(command.size()), 0);
  for (size_t i = 0; i < command.size(); ++i) {
    lua::push(L_, std::string_view(command[i]));
    lua_rawseti(L_, -2, static_cast<int>(i + 1));
  }
  lua::push(L_, std::string_view(folder));
  if (lua_pcall(L_, 2, 0, 0) != 0) fail(Errc::usage, "{}", lua::failure_at(L_, -1).parts.problem);
  lua_pop(L_, 1);
}

int Interpreter::run_file(const fs::path& script, const std::vector<std::string>& arguments) {
  show_place_ = true;
  const std::string text = read_file(script, 64ULL << 20);
  set_module_path(fs::absolute(script).parent_path());
  set_arguments(script.string(), arguments);
  if (!start_compiler()) return fail_now();
  if (load_text(text, "@" + script.string()) != 0) return fail_now();
  for (const std::string& argument : arguments) lua::push(L_, std::string_view(argument));
  return call(static_cast<int>(arguments.size()), false);
}

int Interpreter::run_stdin(const std::vector<std::string>& arguments) {
  show_place_ = true;
  std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  check_interrupt();
  text = Team::world().from_first(std::move(text));  // launchers give the input to one rank
  set_arguments("-", arguments);
  if (!start_compiler()) return fail_now();
  if (load_text(text, "=stdin") != 0) return fail_now();
  for (const std::string& argument : arguments) lua::push(L_, std::string_view(argument));
  return call(static_cast<int>(arguments.size()), false);
}

int Interpreter::run_command(const std::string& name, const fs::path& script,
                             const std::vector<std::string>& arguments) {
  const std::string text = read_file(script, 64ULL << 20);
  const bool is_bundled = script.parent_path() == scripts_;
  if (!is_bundled) set_module_path(fs::absolute(script).parent_path());
  set_arguments(name, arguments);
  if (!is_bundled && !start_compiler()) return fail_now();
  if (luaL_loadstring(L_, lock_globals) != 0 || lua_pcall(L_, 0, 0, 0) != 0) return fail_now();
  if (load_text(text, "@" + script.string()) != 0) return fail_now();
  for (const std::string& argument : arguments) lua::push(L_, std::string_view(argument));
  return call(static_cast<int>(arguments.size()), false);
}

/// Makes `print` escape control characters on a terminal: an expression prints texts of files that are not
/// trusted.
bool Interpreter::use_safe_print() {
  if (!push_module(L_, "cbk.inspect")) return false;
  lua_getfield(L_, -1, "print_line");
  lua_setglobal(L_, "print");
  lua_pop(L_, 1);
  return true;
}

int Interpreter::evaluate(const std::string& code, const std::vector<std::string>& arguments) {
  set_arguments("-e", arguments);
  code_ = code;
  if (!start_compiler() || !push_module(L_, "cbk")) return fail_now();
  lua_setglobal(L_, "cbk");
  if (!use_safe_print()) return fail_now();
  if (load_text("return " + code, "=(command line)") != 0) {
    lua_pop(L_, 1);
    if (load_text(code, "=(command line)") != 0) return fail_now();
  }
  return call(0, true);
}

int Interpreter::call(int arguments, bool print_results) {
  const int function = lua_gettop(L_) - arguments;
  lua_pushcfunction(L_, with_traceback);
  lua_insert(L_, function);
  const int status = lua_pcall(L_, arguments, LUA_MULTRET, function);
  lua_remove(L_, function);
  return finish(status, print_results);
}

int Interpreter::finish(int status, bool print_results) {
  reset_interrupt(L_);
  if (status != 0) return fail_now();
  const int results = lua_gettop(L_);
  int code = exit_ok;
  if (print_results && results > 0) {
    if (!push_module(L_, "cbk.inspect")) return fail_now();
    lua_getfield(L_, -1, "print");
    lua_insert(L_, 1);
    lua_pop(L_, 1);
    if (lua_pcall(L_, results, 0, 0) != 0) return fail_now();
  } else if (!print_results && results > 0 && lua_type(L_, 1) == LUA_TNUMBER) {
    code = static_cast<int>(lua_tointeger(L_, 1)) & 0xff;  // `return 1` of a script is its exit code
  }
  lua_settop(L_, 0);
  return finished(L_, code);
}

/// Reports the error at the top: a plain value, or { value, traceback }.
int Interpreter::fail_now() {
  std::string traceback;
  if (lua_istable(L_, -1) && lua_objlen(L_, -1) == 2) {
    lua_rawgeti(L_, -1, 2);
    traceback = text_at(L_, -1);
    lua_pop(L_, 1);
    lua_rawgeti(L_, -1, 1);
  }
  int code = exit_failure;
  lua::Failure failure = lua::failure_at(L_, -1);
  if (!show_place_) failure.parts.where.clear();
  if (lua_istable(L_, -1)) {
    lua_getfield(L_, -1, "exit_code");
    // Any error object must not lead to exit code 0.
    if (lua_isnumber(L_, -1) && lua_tointeger(L_, -1) != 0) code = static_cast<int>(lua_tointeger(L_, -1));
    lua_pop(L_, 1);
  }
  if (lua_type(L_, -1) == LUA_TSTRING) failure.parts.problem = in_words(L_, failure.parts.problem, code_);
  // The hook may have stopped an error handler: whatever error it raised, Ctrl-C was the cause.
  if (interrupt_requested()) failure.code = "interrupted";
  const bool is_mistake = failure.code == name_of(Errc::usage) || failure.code == name_of(Errc::ambiguous);
  if (is_mistake && !show_place_) code = exit_usage;  // a mistake in a script is not one of its user
  if (failure.code == "interrupted") {
    code = exit_interrupted;
    failure.parts = {.problem = "interrupted"};
  }
  report_error(failure.code, failure.parts);
  if (traceback_ && !traceback.empty()) std::fprintf(stderr, "%s\n", shown(traceback, true).c_str());
  lua_settop(L_, 0);
  return code;
}

}  // namespace cbk::app
