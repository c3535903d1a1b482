// The escapes in the texts of pickle protocols 0 and 1.
#pragma once

#include <string>
#include <string_view>

namespace cbk::pickle {

/// UNICODE's line, Python's "raw-unicode-escape": \uXXXX and \UXXXXXXXX, any other byte is a character of
/// Latin-1. UTF-8; lone surrogates pass.
std::string decode_unicode_line(std::string_view line);

/// The text between the quotes of STRING: Python 2's escapes of bytes (\n, \x41, \101, …).
std::string decode_string_line(std::string_view line);

}  // namespace cbk::pickle
