// How cbk says that something failed: one line on stderr.
#pragma once

#include <string>
#include <string_view>

namespace cbk::app {

inline constexpr int exit_ok = 0;
inline constexpr int exit_failure = 1;
inline constexpr int exit_usage = 2;
inline constexpr int exit_interrupted = 130;

/// "cbk: …" with line breaks folded, control characters escaped, and at most 600 characters.
std::string error_line(std::string_view message);

/// Prints the line (after what stdout still holds).
void report_error(std::string_view message);

/// Writes what is left of the output; when some of it could not be written, tells so. The exit code then is a
/// failure, else `code`.
int finish_output(int code);

}  // namespace cbk::app
