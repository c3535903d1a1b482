#include "host/app/report.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "host/base/message.hpp"
#include "host/base/team.hpp"
#include "host/value/error_json.hpp"

namespace cbk::app {
namespace {

bool is_json = false;
int last_words = -1;  // standard error of a rank that is silent otherwise

std::string line_of(const ErrorParts& parts) {
  return error_line(text_of(parts) + (parts.where.empty() ? "" : fmt::format(" ({})", parts.where)));
}

}  // namespace

void be_silent() {
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  last_words = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  ::dup2(nothing, STDOUT_FILENO);
  ::dup2(nothing, STDERR_FILENO);
  ::close(nothing);
}

std::string error_line(std::string_view message) {
  constexpr size_t limit = 600 - std::string_view("cbk: ").size();
  std::string line = one_line(message);
  if (line.size() <= limit) return line;
  line.resize(limit - 3);
  // No half of a UTF-8 character before the ellipsis.
  while ((static_cast<unsigned char>(line.back()) & 0xc0) == 0x80) line.pop_back();
  if ((static_cast<unsigned char>(line.back()) & 0x80) != 0) line.pop_back();
  return line + "...";
}

void report_errors_as_json() {
  is_json = true;
}

std::string error_text(std::string_view code, const ErrorParts& parts) {
  if (is_json) return error_json(code, parts) + "\n";
  return "cbk: " + line_of(parts) + "\n";
}

void report_error(std::string_view code, const ErrorParts& parts) {
  std::fflush(stdout);
  Team& team = Team::world();
  ErrorParts reported = parts;
  if (!team.is_alone()) {
    // Another rank's failure ends this one like Ctrl-C: what is said is why that one failed.
    const std::string other = team.failure();
    if (other.empty()) {
      if (!team.report_failure(text_of(parts))) return;
    } else {
      reported = {.problem = other};
      const std::string line = error_text(code, reported);
      if (last_words >= 0) [[maybe_unused]]
        const ssize_t ignored = ::write(last_words, line.data(), line.size());
    }
  }
  if (!is_json) return write_message(MessageKind::error, line_of(reported));
  const std::string line = error_text(code, reported);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int leave_team(int code) {
  Team& team = Team::world();
  team.await_end();
  if (code == exit_ok && !team.failure().empty()) {
    report_error(name_of(Errc::usage), {});
    code = exit_failure;
  }
  if (code == exit_interrupted && team.is_stopped()) code = exit_failure;
  std::fflush(nullptr);
  team.leave();
  return code;
}

int finish_output(int code) {
  show_progress({});
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  const std::string reason = errno != 0 ? ": " + std::generic_category().message(errno) : "";
  std::clearerr(stdout);
  report_error(name_of(Errc::io), {.problem = "cannot write to standard output" + reason});
  return std::max(code, static_cast<int>(exit_failure));
}

}  // namespace cbk::app
