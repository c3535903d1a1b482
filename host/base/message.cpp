#include "host/base/message.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "host/base/columns.hpp"
#include "host/base/team.hpp"

namespace cbk {
namespace {

constexpr std::string_view erase_line = "\r\x1b[K";

std::atomic<bool> has_progress = false;

void write(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
}

/// What starts several processes gives them terminals, wherever their output goes.
bool is_terminal() {
  return ::isatty(STDERR_FILENO) != 0 && Team::world().is_alone();
}

/// Columns of the terminal, or 80 if it does not say.
size_t terminal_width() {
  constexpr size_t usual = 80;
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : usual;
}

bool has_colours() {
  const char* none = std::getenv("NO_COLOR");
  const char* type = std::getenv("TERM");
  return (none == nullptr || *none == '\0') && (type == nullptr || std::string_view(type) != "dumb");
}

}  // namespace

std::string broken_lines(std::string_view text, size_t width) {
  constexpr std::string_view indent = "\n  ";
  std::string out;
  size_t columns = 0;
  bool is_first = true;
  while (!text.empty()) {
    const size_t begin = std::min(text.find_first_not_of(' '), text.size());
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(0, end);  // with the spaces before it
    const size_t own = columns_of(word);
    if (!is_first && columns + own > width) {
      out += indent;
      out += word.substr(begin);
      columns = indent.size() - 1 + own - begin;
    } else {
      out += word;
      columns += own;
    }
    is_first = false;
    text.remove_prefix(end);
  }
  return out;
}

void write_message(MessageKind kind, std::string_view text) {
  const bool is_error = kind == MessageKind::error;
  const std::string_view name = is_error ? "cbk:" : "warning:";
  std::fflush(stdout);
  if (!is_terminal()) {
    write(std::string(name) + " " + std::string(text) + "\n");
    return;
  }
  std::string lines = broken_lines(std::string(name) + " " + std::string(text), terminal_width());
  if (has_colours()) {
    lines.insert(name.size(), "\x1b[0m");
    lines.insert(0, is_error ? "\x1b[1;31m" : "\x1b[1;33m");
  }
  has_progress = false;
  write(std::string(erase_line) + lines + "\n");
}

void show_progress(std::string_view text) {
  if (text.empty() && !has_progress) return;
  has_progress = !text.empty();
  write(std::string(erase_line) + std::string(text));
  std::fflush(stderr);
}

std::string_view progress_eraser() {
  return has_progress ? erase_line : std::string_view();
}

}  // namespace cbk
