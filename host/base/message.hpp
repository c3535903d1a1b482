// Messages on standard error. In a terminal, they replace a progress line and are broken between words;
// elsewhere, each is one line, for programs. Not thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace cbk {

enum class MessageKind { error, warning };

/// The text with line breaks between words, for a terminal of `width` columns. Later lines are indented by
/// two columns. Words that are longer stay whole.
std::string broken_lines(std::string_view text, size_t width);

/// Writes "cbk: …" or "warning: …"; `text` has no control characters. In a terminal, the first word is
/// coloured (NO_COLOR, TERM=dumb: not).
void write_message(MessageKind kind, std::string_view text);

/// Shows `text` in the last line of the terminal, in place of the progress before; empty: no more progress.
void show_progress(std::string_view text);

/// What erases the progress on standard error, if there is any; for a thread that ends the program.
std::string_view progress_eraser();

}  // namespace cbk
