// cbk: run, -e, NAME, or nothing (a REPL on a terminal).
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "host/app/locations.hpp"
#include "host/app/report.hpp"
#include "host/app/script.hpp"
#include "host/base/error.hpp"
#include "host/base/open_files.hpp"

namespace cbk::app {
namespace {

using Arguments = std::vector<std::string>;

constexpr const char* usage = R"(usage: cbk [--traceback] COMMAND [ARGUMENTS]

  cbk run SCRIPT [ARGUMENTS]   run a Lua script ('-': from standard input)
  cbk -e EXPRESSION            evaluate Lua and print the result
  cbk NAME [ARGUMENTS]         run a command; 'cbk NAME --help' tells its options
  cbk                          explore checkpoints (on a terminal)

options:
  --traceback                  after an error, show where it came from
  --help, --version

environment:
  CBK_PATH                     folders with commands of your own (NAME.lua), searched first
  CBK_SCRIPTS                  another script library
)";

/// The names of the commands in lines that fit a terminal.
std::string command_list(const fs::path& scripts) {
  std::string out = "\ncommands:\n ";
  size_t width = 1;
  for (const std::string& name : command_names(scripts)) {
    if (width + name.size() + 1 > 78) {
      out += "\n ";
      width = 1;
    }
    out += " " + name;
    width += name.size() + 1;
  }
  return out + "\n";
}

int print_usage() {
  std::fputs(usage, stdout);
  std::fputs(command_list(scripts_folder()).c_str(), stdout);
  return exit_ok;
}

int usage_error(const std::string& message) {
  report_error(message + "; 'cbk --help' tells how to call it");
  return exit_usage;
}

/// Removes --traceback where it is ours: anywhere before "--".
bool take_traceback(Arguments& arguments, Arguments::iterator end) {
  const auto stop = std::find(arguments.begin(), end, "--");
  const auto found = std::find(arguments.begin(), stop, "--traceback");
  if (found == stop) return false;
  arguments.erase(found);
  return true;
}

Arguments rest(const Arguments& arguments, size_t from) {
  return {arguments.begin() + static_cast<ptrdiff_t>(std::min(from, arguments.size())), arguments.end()};
}

/// Ends the program without taking the tree of a large checkpoint apart node by node: a fifth of the time of
/// `cbk ls`.
[[noreturn]] void leave(int code) {
  code = finish_output(code);
  std::fflush(nullptr);
  std::_Exit(code);
}

/// Options of ours end at the script or command; what follows is theirs.
int run(Arguments arguments) {
  bool traceback = false;
  while (!arguments.empty() && arguments[0] == "--traceback") {
    traceback = true;
    arguments.erase(arguments.begin());
  }
  if (arguments.empty()) {
    if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0) {
      report_error("no command given; 'cbk --help' tells how to call it");
      return exit_usage;
    }
    arguments.emplace_back("repl");
  }
  const std::string first = arguments[0];
  if (first == "--help" || first == "-h") return print_usage();
  if (first == "--version") {
    std::puts("cbk " CBK_VERSION);
    return exit_ok;
  }
  arguments.erase(arguments.begin());
  const bool is_run = first == "run";
  if (is_run) {
    while (!arguments.empty() && take_traceback(arguments, arguments.begin() + 1)) traceback = true;
  } else if (first != "-e") {
    traceback = take_traceback(arguments, arguments.end()) || traceback;
  }
  if (is_run && !arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h"))
    return print_usage();
  if (is_run && arguments.empty()) return usage_error("run: which script?");
  if (is_run && arguments[0].size() > 1 && arguments[0][0] == '-') {
    return usage_error("run: unknown option " + quote(arguments[0]));
  }
  if (first == "-e" && arguments.empty()) return usage_error("-e: which expression?");
  if (!is_run && first != "-e" && first.starts_with("-"))
    return usage_error("unknown option " + quote(first));

  const fs::path scripts = scripts_folder();
  const bool is_command = !is_run && first != "-e";
  const fs::path command = is_command ? find_command(scripts, first) : fs::path();
  Interpreter interpreter(scripts);
  if (traceback) interpreter.show_tracebacks();
  if (is_command) leave(interpreter.run_command(first, command, arguments));
  if (first == "-e") leave(interpreter.evaluate(arguments[0], rest(arguments, 1)));
  if (arguments[0] == "-") leave(interpreter.run_stdin(rest(arguments, 1)));
  leave(interpreter.run_file(arguments[0], rest(arguments, 1)));
}

int guarded_run(Arguments arguments) {
  try {
    return run(std::move(arguments));
  } catch (const Error& error) {
    report_error(error.what());
    if (error.code() == Errc::interrupted) return exit_interrupted;
    return error.code() == Errc::usage ? exit_usage : exit_failure;
  } catch (const std::exception& error) {
    report_error(error.what());
    return exit_failure;
  }
}

}  // namespace
}  // namespace cbk::app

int main(int argc, char** argv) {
  cbk::raise_open_files_limit();
  return cbk::app::finish_output(cbk::app::guarded_run({argv + 1, argv + argc}));
}
