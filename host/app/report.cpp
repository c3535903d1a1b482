#include "host/app/report.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "host/base/error.hpp"

namespace cbk::app {

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

void report_error(std::string_view message) {
  std::fflush(stdout);
  std::string line = error_line(message) + "\n";
  if (::isatty(STDERR_FILENO) != 0) line.insert(0, "\r\x1b[K");  // a progress line may stand there
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int finish_output(int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  const std::string reason = errno != 0 ? ": " + std::generic_category().message(errno) : "";
  std::clearerr(stdout);
  report_error("cannot write to standard output" + reason);
  return std::max(code, static_cast<int>(exit_failure));
}

}  // namespace cbk::app
