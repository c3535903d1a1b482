// cbk: run, -e, NAME, or nothing (a REPL on a terminal).
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "host/app/confine.hpp"
#include "host/app/locations.hpp"
#include "host/app/report.hpp"
#include "host/app/script.hpp"
#include "host/app/versions.hpp"
#include "host/base/error.hpp"
#include "host/base/open_files.hpp"
#include "host/base/stale.hpp"
#include "host/base/team.hpp"

namespace cbk::app {
namespace {

using Arguments = std::vector<std::string>;

int usage_error(const std::string& message) {
  report_error(name_of(Errc::usage), {.problem = message, .advice = "see 'cbk --help'"});
  return exit_usage;
}

/// Removes --traceback if it is cbk's own: anywhere before "--".
bool take_traceback(Arguments& arguments, Arguments::iterator end) {
  const auto stop = std::find(arguments.begin(), end, "--");
  const auto found = std::find(arguments.begin(), stop, "--traceback");
  if (found == stop) return false;
  arguments.erase(found);
  return true;
}

/// The options of `cbk run` before the script: --resume and --plan FOLDER.
struct RunOptions {
  bool has_job = false;
  std::string folder;  // of --plan
};

RunOptions take_run_options(Arguments& arguments) {
  RunOptions out;
  constexpr std::string_view plan = "--plan=";
  while (!arguments.empty() &&
         (arguments[0] == "--resume" || arguments[0] == "--plan" || arguments[0].starts_with(plan))) {
    out.has_job = true;
    if (arguments[0].starts_with(plan)) out.folder = arguments[0].substr(plan.size());
    if (arguments[0] == "--plan") {
      arguments.erase(arguments.begin());
      if (arguments.empty()) fail(Errc::usage, "run: --plan needs a folder");
      out.folder = arguments[0];
    }
    arguments.erase(arguments.begin());
  }
  return out;
}

/// Whether a command is called with --json.
bool asks_for_json(const Arguments& arguments) {
  const auto stop = std::find(arguments.begin(), arguments.end(), "--");
  return std::find(arguments.begin(), stop, "--json") != stop;
}

bool asks_for_help(std::string_view word) {
  return word == "--help" || word == "-h";
}

/// `cbk --help` is `cbk help`; `cbk run --help`, `cbk -e --help` and `cbk help -e` are `cbk help run`.
/// `cbk help NAME` is `cbk NAME --help` if NAME is a command without a page of its own.
Arguments with_help_resolved(Arguments words, const fs::path& scripts) {
  if (asks_for_help(words[0])) return {"help"};
  const bool runs = words[0] == "run" || words[0] == "-e";
  if (runs && words.size() > 1 && asks_for_help(words[1])) return {"help", "run"};
  if (words[0] != "help" || words.size() != 2) return words;
  if (words[1] == "-e") return {"help", "run"};
  const std::string name = command_name(words[1]);
  std::error_code ignored;
  const bool has_page = fs::exists(scripts / "help" / (name + ".md"), ignored);
  if (!has_page && commands(scripts).contains(name)) return {words[1], "--help"};
  return words;
}

Arguments rest(const Arguments& arguments, size_t from) {
  return {arguments.begin() + static_cast<ptrdiff_t>(std::min(from, arguments.size())), arguments.end()};
}

/// Ends the program without freeing the tree of a large checkpoint node by node, which takes a fifth of the
/// time of `cbk ls`.
int leave(int code) {
  code = leave_team(finish_output(code));
  remove_temporaries();
  remove_empty_folders();
  if (!leaves_at_once) return code;
  std::fflush(nullptr);
  std::_Exit(code);
}

/// cbk's own options end at the script or command; the rest is for that.
int run(Arguments arguments) {
  bool traceback = false;
  while (!arguments.empty() && arguments[0] == "--traceback") {
    traceback = true;
    arguments.erase(arguments.begin());
  }
  if (arguments.empty()) {
    if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0) return usage_error("no command given");
    arguments.emplace_back("repl");
  }
  if (arguments[0] == "--version") {
    std::fputs(versions().c_str(), stdout);
    return exit_ok;
  }
  const fs::path scripts = scripts_folder();
  arguments = with_help_resolved(std::move(arguments), scripts);
  const std::string first = arguments[0];
  arguments.erase(arguments.begin());
  const bool is_run = first == "run";
  const bool is_command = !is_run && first != "-e";
  if (is_run) {
    while (!arguments.empty() && take_traceback(arguments, arguments.begin() + 1)) traceback = true;
  } else if (is_command) {
    traceback = take_traceback(arguments, arguments.end()) || traceback;
  }
  const RunOptions run_options = is_run ? take_run_options(arguments) : RunOptions();
  if (first != "-e" && asks_for_json(arguments)) report_errors_as_json();
  if (is_run && arguments.empty()) return usage_error("run: missing argument SCRIPT");
  if (is_run && arguments[0].size() > 1 && arguments[0][0] == '-')
    return usage_error("run: unknown option " + quote(arguments[0]));
  if (first == "-e" && arguments.empty()) return usage_error("-e: missing argument EXPRESSION");
  if (is_command && first.starts_with("-")) return usage_error("unknown option " + quote(first));

  const fs::path command = is_command ? find_command(scripts, first) : fs::path();
  Interpreter interpreter(scripts);
  if (traceback) interpreter.show_tracebacks();
  if (is_command) return leave(interpreter.run_command(first, command, arguments));
  if (run_options.has_job) {
    if (arguments[0] == "-")
      return usage_error("run: a job needs a script in a file: each step of it runs the script again");
    Arguments words{"run"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    interpreter.use_job(run_options.folder, words);
  }
  if (first == "-e") return leave(interpreter.evaluate(arguments[0], rest(arguments, 1)));
  if (arguments[0] == "-") return leave(interpreter.run_stdin(rest(arguments, 1)));
  return leave(interpreter.run_file(arguments[0], rest(arguments, 1)));
}

/// Whether each of several processes does this alone: `work` writes its own part of a job.
bool is_for_itself(const Arguments& arguments) {
  static const std::set<std::string_view> names = {"work",   "status", "help",     "complete",
                                                   "--help", "-h",     "--version"};
  return arguments.empty() || names.contains(arguments[0]);
}

int guarded_run(Arguments arguments) {
  try {
    if (!is_for_itself(arguments)) Team::join(CBK_VERSION);
    if (!Team::world().is_first()) be_silent();
    return run(std::move(arguments));
  } catch (const Error& error) {
    report_error(name_of(error.code()), error.parts());
    if (error.code() == Errc::interrupted) return exit_interrupted;
    return error.code() == Errc::usage ? exit_usage : exit_failure;
  } catch (const std::exception& error) {
    report_error(name_of(Errc::internal), {.problem = error.what()});
    return exit_failure;
  }
}

/// LuaJIT limits its own stack, not the program's. Callbacks of `string.gsub` that call it again end in an
/// error after some 9,000 levels, which take 80 MiB. The stack grows as it is used; the loader leaves 128 MiB
/// for it.
void raise_stack_limit() noexcept {
  constexpr rlim_t wanted = 120U << 20;
  constexpr size_t of_threads = 8U << 20;  // which would take the limit of whoever started the program
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) == 0) {
    pthread_attr_setstacksize(&attributes, of_threads);
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
  }
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_STACK, &limit);
}

}  // namespace
}  // namespace cbk::app

int main(int argc, char** argv) {
  // Large blocks are returned to the system when they are freed; by default, malloc would keep some after
  // the first one.
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  // Smaller ones are allocated for each tensor; their pages would be returned and cleared every time.
  mallopt(M_TRIM_THRESHOLD, 16 << 20);
  cbk::raise_open_files_limit();
  cbk::app::raise_stack_limit();
  return cbk::app::leave_team(cbk::app::finish_output(cbk::app::guarded_run({argv + 1, argv + argc})));
}
