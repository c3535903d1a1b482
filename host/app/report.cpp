#include "host/app/report.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "host/value/error_json.hpp"

namespace cbk::app {
namespace {

bool is_json = false;

}  // namespace

std::string error_line(std::string_view message) {
  constexpr size_t limit = 600;
  std::string line = "cbk: " + one_line(message);
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
  return error_line(text_of(parts) + (parts.where.empty() ? "" : fmt::format(" ({})", parts.where))) + "\n";
}

void report_error(std::string_view code, const ErrorParts& parts) {
  std::fflush(stdout);
  std::string line = error_text(code, parts);
  if (!is_json && ::isatty(STDERR_FILENO) != 0) line.insert(0, "\r\x1b[K");  // there may be a progress line
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int finish_output(int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  const std::string reason = errno != 0 ? ": " + std::generic_category().message(errno) : "";
  std::clearerr(stdout);
  report_error(name_of(Errc::io), {.problem = "cannot write to standard output" + reason});
  return std::max(code, static_cast<int>(exit_failure));
}

}  // namespace cbk::app
