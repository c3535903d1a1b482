// One Lua state with everything loaded, and functions that run programs in it.
#pragma once

#include <lua.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace cbk::app {

namespace fs = std::filesystem;

/// The message handler of a protected call: a table of the raised value and the traceback.
int with_traceback(lua_State* L);

/// Owns the Lua state. Use from the main thread only.
class Interpreter {
 public:
  explicit Interpreter(fs::path scripts);
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;
  ~Interpreter();

  void show_tracebacks() { traceback_ = true; }

  /// Each runs a program, reports errors on stderr, and returns the exit code.
  /// Every commit is a step of a job (scripts/lib/cbk/job.lua): it is planned in `folder`, or resumes if that
  /// is empty. `command`: the words with which it is made again.
  void use_job(const std::string& folder, const std::vector<std::string>& command);
  int run_file(const fs::path& script, const std::vector<std::string>& arguments);
  int run_stdin(const std::vector<std::string>& arguments);
  /// A bundled or personal command: `name` is what the user typed. Undeclared globals are errors in it.
  int run_command(const std::string& name, const fs::path& script, const std::vector<std::string>& arguments);
  /// An expression (its values are printed) or statements; `cbk` is available.
  int evaluate(const std::string& code, const std::vector<std::string>& arguments);

 private:
  void set_arguments(const std::string& name, const std::vector<std::string>& arguments);
  void set_module_path(const fs::path& own);
  int load_text(const std::string& text, const std::string& chunk_name);
  int call(int arguments, bool print_results);
  int finish(int status, bool print_results);
  bool start_compiler();
  bool use_safe_print();
  int fail_now();

  lua_State* L_;
  fs::path scripts_;
  std::string system_path_;
  std::string code_;  // of `evaluate`
  bool traceback_ = false;
  bool show_place_ = false;
};

}  // namespace cbk::app
