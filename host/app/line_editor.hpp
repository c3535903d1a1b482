// Lines typed at a terminal: editing keys, history and completion (libedit). Use from the main thread, one at
// a time.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cbk::app {

namespace fs = std::filesystem;

class LineEditor {
 public:
  struct Completion {
    size_t begin = 0;  // bytes [begin, cursor) of the line are replaced
    std::vector<std::string> candidates;
  };
  using Completer = std::function<Completion(std::string_view line, size_t cursor)>;
  enum class Outcome { line, interrupted, end };

  /// `history`: a file, readable by its owner only, shared with other sessions; empty: none is
  /// kept.
  LineEditor(fs::path history, Completer completer);
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;
  ~LineEditor();

  /// A line without its last line feed. A recalled entry may have several lines, and Alt-Enter adds one. Text
  /// between two bytes 1 of the prompt takes no column. Ctrl-C returns `interrupted` (the half-typed line is
  /// discarded), Ctrl-D on an empty line `end`.
  Outcome read(const std::string& prompt, std::string& line);
  /// Adds to the history, unless it is the last entry already; an older copy moves to the end.
  void remember(const std::string& entry);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cbk::app
