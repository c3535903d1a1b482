#include "host/app/line_editor.hpp"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cwchar>

#include "host/app/history.hpp"
#include "host/base/columns.hpp"
#include "host/base/interrupt.hpp"

namespace cbk::app {
namespace {

volatile std::sig_atomic_t terminal_changed = 0;  // another size, or back from Ctrl-Z

void on_terminal_change(int /*signal*/) {
  terminal_changed = 1;
}

void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(::nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

std::string common_prefix(const std::vector<std::string>& texts) {
  std::string prefix = texts.front();
  for (const std::string& text : texts) {
    const auto end = std::mismatch(prefix.begin(), prefix.end(), text.begin(), text.end()).first;
    prefix.erase(end, prefix.end());
  }
  while (!prefix.empty() && (static_cast<unsigned char>(prefix.back()) & 0xc0) == 0x80) prefix.pop_back();
  return prefix;
}

size_t terminal_width() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// Prints names in columns, without their common beginning (up to a separator).
void print_columns(const std::vector<std::string>& names) {
  constexpr size_t most = 200;
  const size_t shared = [&] {
    const size_t at = common_prefix(names).find_last_of("./:\"");
    return at == std::string::npos ? 0 : at + 1;
  }();
  size_t widest = 0;
  const auto width_of = [&](const std::string& name) {
    return columns_of(std::string_view(name).substr(shared));
  };
  for (const std::string& name : names) widest = std::max(widest, width_of(name) + 2);
  const size_t shown = std::min(names.size(), most);
  const size_t columns = std::max<size_t>(1, terminal_width() / widest);
  const size_t rows = (shown + columns - 1) / columns;
  std::fputc('\n', stdout);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t i = row; i < shown; i += rows) {
      const bool is_last = i + rows >= shown;
      const size_t padding = is_last ? 0 : widest - width_of(names[i]);
      std::fprintf(stdout, "%s%*s", names[i].c_str() + shared, static_cast<int>(padding), "");
    }
    std::fputc('\n', stdout);
  }
  if (names.size() > most) std::fprintf(stdout, "... and %zu more\n", names.size() - most);
  std::fflush(stdout);
}

/// Waits for a byte; false: a signal came first. Signals are unblocked only while it waits, so that none is
/// lost between the last check of their flags and the wait.
bool wait_for_input() {
  sigset_t ours;
  sigset_t before;
  sigemptyset(&ours);
  for (const int signal : {SIGINT, SIGWINCH, SIGCONT}) sigaddset(&ours, signal);
  pthread_sigmask(SIG_BLOCK, &ours, &before);
  bool is_ready = false;
  if (!interrupt_requested() && terminal_changed == 0) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    is_ready = ::ppoll(&input, 1, nullptr, &before) >= 0 || errno != EINTR;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return is_ready;
}

}  // namespace

struct LineEditor::State {
  State(fs::path file, Completer complete) : completer(std::move(complete)), history(std::move(file)) {}

  Completer completer;
  History history;
  EditLine* editor = nullptr;
  ::History* shown = nullptr;  // libedit's copy of the history
  std::string prompt;
  bool interrupted = false;

  static State& of(EditLine* editor) {
    void* state = nullptr;
    el_get(editor, EL_CLIENTDATA, &state);
    return *static_cast<State*>(state);
  }

  // --- recalling entries that begin with the text before the cursor

  size_t recalled = 0;         // the entry that is shown; entries().size(): what was typed
  std::string recalled_text;   // as it was put into the line
  std::string recalled_start;  // what entries have to begin with
  std::string typed;           // before the first one was recalled

  static std::string text_of(EditLine* editor) {
    const LineInfo* info = el_line(editor);
    return {info->buffer, static_cast<size_t>(info->lastchar - info->buffer)};
  }

  static std::string text_before_cursor(EditLine* editor) {
    const LineInfo* info = el_line(editor);
    return {info->buffer, static_cast<size_t>(info->cursor - info->buffer)};
  }

  static void replace_text(EditLine* editor, const std::string& text) {
    constexpr int beyond = 1 << 20;
    const int length = el_cursor(editor, beyond);  // moves to the end
    el_deletestr(editor, length);
    el_insertstr(editor, text.c_str());
  }

  unsigned char recall(int step) {
    const std::vector<std::string>& entries = history.entries();
    if (text_of(editor) != recalled_text || recalled_text.empty()) {
      recalled = entries.size();
      recalled_start = text_before_cursor(editor);
      typed = text_of(editor);
    }
    for (size_t at = recalled + static_cast<size_t>(step); at < entries.size();
         at += static_cast<size_t>(step)) {
      if (!entries[at].starts_with(recalled_start)) continue;
      recalled = at;
      recalled_text = entries[at];
      replace_text(editor, recalled_text);
      return CC_REFRESH;
    }
    if (step < 0 || recalled == entries.size()) return CC_REFRESH_BEEP;
    recalled = entries.size();
    recalled_text.clear();
    replace_text(editor, typed);
    return CC_REFRESH;
  }

  // --- several lines

  /// Moves the cursor to the same column of the line above or below; false in the first or last line.
  static bool move_by_line(EditLine* editor, bool up) {
    const std::wstring text = wide(text_of(editor));
    const auto cursor = wide(text_before_cursor(editor)).size();
    const auto begin_of = [&](size_t at) { return at == 0 ? 0 : text.rfind(L'\n', at - 1) + 1; };
    const size_t begin = begin_of(cursor);
    size_t target = 0;
    if (up) {
      if (begin == 0) return false;
      target = begin_of(begin - 1);
    } else {
      target = text.find(L'\n', cursor) + 1;
      if (target == 0) return false;
    }
    const size_t end = std::min(text.find(L'\n', target), text.size());
    target = std::min(target + (cursor - begin), end);
    el_cursor(editor, static_cast<int>(target) - static_cast<int>(cursor));
    return true;
  }

  static std::wstring wide(const std::string& text) {
    std::wstring out(text.size() + 1, L'\0');
    const size_t length = std::mbstowcs(out.data(), text.c_str(), out.size());
    out.resize(length == static_cast<size_t>(-1) ? 0 : length);
    return out;
  }

  static unsigned char go_up(EditLine* editor, int /*key*/) {
    return move_by_line(editor, true) ? static_cast<unsigned char>(CC_REFRESH) : of(editor).recall(-1);
  }

  static unsigned char go_down(EditLine* editor, int /*key*/) {
    return move_by_line(editor, false) ? static_cast<unsigned char>(CC_REFRESH) : of(editor).recall(1);
  }

  static unsigned char go_to_begin(EditLine* editor, int /*key*/) {
    const std::wstring before = wide(text_before_cursor(editor));
    el_cursor(editor, static_cast<int>(before.rfind(L'\n') + 1) - static_cast<int>(before.size()));
    return CC_REFRESH;
  }

  static unsigned char go_to_end(EditLine* editor, int /*key*/) {
    const std::wstring text = wide(text_of(editor));
    const size_t cursor = wide(text_before_cursor(editor)).size();
    el_cursor(editor, static_cast<int>(std::min(text.find(L'\n', cursor), text.size()) - cursor));
    return CC_REFRESH;
  }

  static unsigned char add_line(EditLine* editor, int /*key*/) {
    return el_insertstr(editor, "\n") == 0 ? CC_REFRESH : CC_REFRESH_BEEP;
  }

  static char* prompt_of(EditLine* editor) { return of(editor).prompt.data(); }

  void refill() {
    HistEvent event;
    ::history(shown, &event, H_CLEAR);
    for (const std::string& entry : history.entries()) ::history(shown, &event, H_ENTER, entry.c_str());
  }

  /// One character; libedit's own reader continues after Ctrl-C.
  static int read_character(EditLine* editor, wchar_t* out) {
    State& state = of(editor);
    std::mbstate_t decoder{};
    for (;;) {
      char byte = 0;
      const bool is_ready = wait_for_input();
      const ssize_t count = is_ready ? ::read(STDIN_FILENO, &byte, 1) : -1;
      if (count == 0) return 0;
      if (count < 0) {
        if (interrupt_requested()) {
          state.interrupted = true;
          return -1;
        }
        if (is_ready && errno != EINTR) return -1;
        if (terminal_changed != 0) {
          terminal_changed = 0;
          el_set(editor, EL_PREP_TERM, 1);
          el_resize(editor);
          el_set(editor, EL_REFRESH);
        }
        continue;
      }
      wchar_t character = 0;
      const size_t used = std::mbrtowc(&character, &byte, 1, &decoder);
      if (used == static_cast<size_t>(-2)) continue;  // the rest of the character follows
      if (used == static_cast<size_t>(-1)) {
        decoder = {};
        continue;  // not UTF-8: dropped
      }
      *out = character;
      return 1;
    }
  }

  static unsigned char complete(EditLine* editor, int /*key*/) {
    State& state = of(editor);
    const LineInfo* info = el_line(editor);
    const std::string_view line(info->buffer, static_cast<size_t>(info->lastchar - info->buffer));
    const auto cursor = static_cast<size_t>(info->cursor - info->buffer);
    const Completion found = state.completer(line, cursor);
    if (found.candidates.empty()) return CC_REFRESH_BEEP;
    const std::string typed(line.substr(found.begin, cursor - found.begin));
    const std::string longest = common_prefix(found.candidates);
    if (longest.size() > typed.size() && longest.starts_with(typed)) {
      return el_insertstr(editor, longest.c_str() + typed.size()) == 0 ? CC_REFRESH : CC_REFRESH_BEEP;
    }
    if (found.candidates.size() < 2) return CC_NORM;
    print_columns(found.candidates);
    return CC_REDISPLAY;
  }
};

LineEditor::LineEditor(fs::path history, Completer completer)
    : state_(std::make_unique<State>(std::move(history), std::move(completer))) {
  use_utf8();
  State& state = *state_;
  state.editor = el_init("cbk", stdin, stdout, stderr);
  state.shown = history_init();
  HistEvent event;
  ::history(state.shown, &event, H_SETSIZE, 10000);
  el_set(state.editor, EL_CLIENTDATA, &state);
  el_set(state.editor, EL_EDITOR, "emacs");
  el_set(state.editor, EL_SIGNAL, 0);
  el_set(state.editor, EL_PROMPT_ESC, State::prompt_of, '\1');
  el_set(state.editor, EL_HIST, ::history, state.shown);
  el_set(state.editor, EL_GETCFN, State::read_character);
  el_set(state.editor, EL_ADDFN, "cbk-complete", "completes names", State::complete);
  el_set(state.editor, EL_ADDFN, "cbk-up", "the line above, or an older entry", State::go_up);
  el_set(state.editor, EL_ADDFN, "cbk-down", "the line below, or a newer entry", State::go_down);
  el_set(state.editor, EL_ADDFN, "cbk-begin", "to the line's begin", State::go_to_begin);
  el_set(state.editor, EL_ADDFN, "cbk-end", "to the line's end", State::go_to_end);
  el_set(state.editor, EL_ADDFN, "cbk-add-line", "a line more", State::add_line);
  constexpr std::array<std::array<const char*, 2>, 17> keys = {{
      {"^I", "cbk-complete"},
      {"^R", "em-inc-search-prev"},
      {"\\e[A", "cbk-up"},
      {"\\e[B", "cbk-down"},
      {"\\eOA", "cbk-up"},
      {"\\eOB", "cbk-down"},
      {"\\e^M", "cbk-add-line"},
      {"\\e^J", "cbk-add-line"},
      {"^A", "cbk-begin"},
      {"^E", "cbk-end"},
      {"\\e[H", "cbk-begin"},
      {"\\e[F", "cbk-end"},
      {"\\e[1~", "cbk-begin"},
      {"\\e[4~", "cbk-end"},
      {"\\e[3~", "ed-delete-next-char"},
      {"\\e[1;5C", "em-next-word"},
      {"\\e[1;5D", "ed-prev-word"},
  }};
  for (const auto& [key, command] : keys) el_set(state.editor, EL_BIND, key, command, nullptr);
  el_source(state.editor, nullptr);  // the user's ~/.editrc
  state.refill();

  struct sigaction action {};
  action.sa_handler = on_terminal_change;
  sigaction(SIGWINCH, &action, nullptr);
  sigaction(SIGCONT, &action, nullptr);
}

LineEditor::~LineEditor() {
  history_end(state_->shown);
  el_end(state_->editor);
}

LineEditor::Outcome LineEditor::read(const std::string& prompt, std::string& line) {
  State& state = *state_;
  state.prompt = prompt;
  state.interrupted = false;
  state.recalled_text.clear();
  el_set(state.editor, EL_PREP_TERM,
         1);  // before the prompt: who types as soon as it is seen is not echoed twice
  int length = 0;
  const char* text = el_gets(state.editor, &length);
  if (state.interrupted) {
    el_reset(state.editor);
    std::fputs("^C\n", stdout);
    return Outcome::interrupted;
  }
  if (text == nullptr || length <= 0) return Outcome::end;
  line.assign(text, static_cast<size_t>(length));
  if (line.ends_with('\n')) line.pop_back();
  return Outcome::line;
}

void LineEditor::remember(const std::string& entry) {
  if (state_->history.add(entry)) state_->refill();
}

}  // namespace cbk::app
