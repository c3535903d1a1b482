#include "host/app/report.hpp"

#include <fmt/format.h>

#include <unistd.h>

#include <cstdio>

namespace cbk::app {

std::string error_line(std::string_view message) {
  constexpr size_t limit = 600;
  std::string line = "cbk: ";
  bool pending_break = false;
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n' || c == '\r') {
      pending_break = true;
    } else if (pending_break && (c == ' ' || c == '\t')) {
      continue;  // the indentation of a folded line
    } else {
      if (pending_break && line.size() > 5) line += line.back() == ':' || line.back() == ';' ? " " : "; ";
      pending_break = false;
      line += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
    }
    if (line.size() > limit + 8) break;
  }
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

}  // namespace cbk::app
