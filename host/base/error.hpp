// The one exception of the host. A message says what failed, on what, why, and what to try;
// each layer may put its own context (file, key, offset) in front with `within`.
#pragma once

#include <fmt/format.h>
#include <concepts>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cbk {

/// What kind of thing went wrong; Lua sees the lower-case name as `err.code`.
enum class Errc {
  usage,        // the caller asked for something that makes no sense
  key,          // no such key
  value,        // a value that cannot be used here
  shape,        // shapes that do not fit together
  dtype,        // a dtype that cannot be used here
  format,       // a file that is damaged, or not what it says it is
  unsupported,  // well-formed, but not supported
  refused,      // would have to execute or trust untrusted input
  exists,       // the target exists already
  io,           // the operating system said no
  no_space,     // the disk is full
  interrupted,  // Ctrl-C
  internal,     // a bug of ours
};

std::string_view name_of(Errc code);

class Error : public std::runtime_error {
 public:
  Error(Errc code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] Errc code() const { return code_; }

 private:
  Errc code_;
};

template <typename... Args>
[[noreturn]] void fail(Errc code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Throws `io` (or `no_space`, `exists`) for the current `errno`: "cannot <action> '<path>': <reason>".
[[noreturn]] void fail_errno(std::string_view action, std::string_view path);
[[noreturn]] void fail_errno(std::string_view action, std::string_view path, int error_number);

/// Runs `body`; an Error out of it gets "<context>: " in front.
template <typename Body>
decltype(auto) within(std::string_view context, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", context, error.what()));
  }
}

/// The same with a context that is made only for an Error: for what runs 20,000 times.
template <std::invocable Context, typename Body>
decltype(auto) within(Context&& context, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", std::forward<Context>(context)(), error.what()));
  }
}

/// Untrusted text for a terminal: control characters, invisible ones, those that turn the direction of text,
/// and bytes that are not characters become \xNN. `lines`: line feeds and tabs stay.
std::string shown(std::string_view text, bool lines = false);

/// The same in quotes, at most `limit` bytes of it.
std::string quote(std::string_view text, size_t limit = 120);

/// A message as one line: line breaks become "; ", the rest as `shown` has it.
std::string one_line(std::string_view message);

/// "a, b, c and 17 more".
std::string listed(const std::vector<std::string>& names, size_t limit = 20);

/// Those of `candidates` that look most like `name` (edit distance without case; those that it begins are
/// near), nearest first, at most `limit`.
std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates,
                                 size_t limit = 3);

}  // namespace cbk
