// How cbk reports an error on stderr: one line for people, or one JSON object for programs (--json).
// The format belongs to the process, as stderr does; it is set before other threads start.
#pragma once

#include <string>
#include <string_view>

#include "host/base/error.hpp"

namespace cbk::app {

inline constexpr int exit_ok = 0;
inline constexpr int exit_failure = 1;
inline constexpr int exit_usage = 2;
inline constexpr int exit_interrupted = 130;

/// Whether the program ends without freeing its Lua state. The leak check needs everything freed.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool leaves_at_once = false;
#else
inline constexpr bool leaves_at_once = true;
#endif

/// The message with line breaks folded, control characters escaped, and at most 600 characters with "cbk: ".
std::string error_line(std::string_view message);

/// For a rank that is not the first: nothing that it says is shown, except that rank 0 does not answer.
void be_silent();

/// From here on, errors are reported in the format of `error_json`.
void report_errors_as_json();

/// The line that reports an error, with its line feed.
std::string error_text(std::string_view code, const ErrorParts& parts);

/// Prints the error (after the buffered output of stdout). The message is not cut in JSON.
void report_error(std::string_view code, const ErrorParts& parts);

/// The end of the program for the other ranks of its team, if there are any. A failure code if one of them
/// failed.
int leave_team(int code);

/// Writes the rest of the output and reports an error. Returns a failure code then, else `code`.
int finish_output(int code);

}  // namespace cbk::app
