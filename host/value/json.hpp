// JSON text to Value and back, with order, integers of any size and the spelling of numbers kept.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "host/value/value.hpp"

namespace cbk {

struct JsonReadOptions {
  bool python = false;         // also NaN, Infinity, -Infinity and escapes of lone surrogates, as Python
  bool keep_spelling = false;  // numbers remember how they were written (configs)
  bool reject_duplicates = false;
  uint64_t file_size = 0;  // of the file that the text is only a part of
  /// Receives each list or object that is a member of the top object, once it is complete; the tree keeps
  /// None in its place. So a long text of many members needs the memory of only one.
  std::function<void(const std::string& key, const Value& member)> take_member = {};
  std::function<void(std::string)> warn = {};  // gets the first keys that one object has twice, and the
                                               // number of others; the last one counts
};

/// Errors: `format` with line and column. Nesting deeper than 500 is refused, and so is a text with a tree
/// that takes more memory than `TreeMemory` allows.
Value parse_json(std::string_view text, const JsonReadOptions& options = {});

struct JsonWriteOptions {
  int indent = -1;      // -1: one line
  bool ascii = false;   // escape everything beyond ASCII
  bool python = false;  // NaN, Infinity, lone surrogates as escapes; otherwise these are `value` errors
  bool shown = false;   // what no terminal should get (see `is_plain`) as escapes, lone surrogates among it
  bool spaced = true;   // ", " and ": " as Python's json.dumps; false: "," and ":"
  size_t limit = 1ULL << 30;  // bytes: longer output is a `value` error. Shared containers expand
};

/// None, bools, numbers, text, lists, tuples and dicts; keys that are numbers, bools or None become text, as
/// in Python. Anything else is a `value` error. A number keeps the spelling it was read with where JSON
/// allows it.
std::string to_json(const Value& value, const JsonWriteOptions& options = {});

/// A JSON string literal with its quotes; lone surrogates become escapes.
std::string json_quote(std::string_view text, bool ascii = false);
/// The same, appended to a text.
void append_json_quoted(std::string& out, std::string_view text, bool ascii);

}  // namespace cbk
