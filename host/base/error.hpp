// The one exception of the host. It has as values what failed, on what, why, and what to try; its text is
// made from these. Each layer may put its own context (file, key, offset) in front with `within`. Code
// decides by the code and the parts of an error, never by its text.
#pragma once

#include <fmt/format.h>
#include <concepts>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cbk {

/// The kind of error; Lua sees the lower-case name as `err.code`.
enum class Errc {
  usage,        // the caller asked for something that makes no sense
  ambiguous,    // what the caller asked for is several things
  missing,      // what the caller asked for is not there, though its place is
  key,          // no such key
  value,        // a value that cannot be used here
  shape,        // shapes that do not fit together
  dtype,        // a dtype that cannot be used here
  format,       // a file that is damaged, or not what it says it is
  unsupported,  // well-formed, but not supported
  refused,      // would have to execute or trust untrusted input
  external,     // a file that another one names leads out of its folder
  changed,      // a file is not the one that was opened
  exists,       // the target exists already
  io,           // the operating system said no
  no_space,     // the disk is full
  interrupted,  // Ctrl-C
  internal,     // a bug of ours
};

std::string_view name_of(Errc code);

/// The parts of an error. Empty parts are unknown or not needed.
struct ErrorParts {
  std::string problem{};               // what failed, on what, why: one sentence
  std::vector<std::string> context{};  // what it happened in, outermost first: "cannot open 'a.pt'"
  std::string file{};                  // what it is about, where that is a file, a key or a field of a config
  std::string key{};
  std::string field{};
  std::string expected{};
  std::string found{};
  std::string supported{};
  std::string advice{};  // what to try
  std::string where{};   // "file:line" of the script that met it; not part of the text
};

/// "<context>: <problem>: expected <expected>, found <found>; <advice>", or "…: only <supported> is
/// supported; <advice>" without a finding. The one place where the text of an error is made.
std::string text_of(const ErrorParts& parts);

class Error : public std::runtime_error {
 public:
  template <std::convertible_to<std::string> Text>
  Error(Errc code, Text&& problem) : Error(code, ErrorParts{.problem = std::forward<Text>(problem)}) {}
  Error(Errc code, ErrorParts parts)
      : std::runtime_error(text_of(parts)),
        code_(code),
        parts_(std::make_shared<const ErrorParts>(std::move(parts))) {}

  [[nodiscard]] Errc code() const { return code_; }
  [[nodiscard]] const ErrorParts& parts() const { return *parts_; }

  /// The same error in a further context.
  [[nodiscard]] Error in(std::string context) const;
  /// The same error, about a file; a file that is known already stays.
  [[nodiscard]] Error about(const std::string& file) const;

 private:
  Errc code_;
  std::shared_ptr<const ErrorParts> parts_;  // copies of exceptions must not throw
};

template <typename... Args>
[[noreturn]] void fail(Errc code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Throws `io` (or `no_space`, `exists`) for the current `errno`: "cannot <action> '<path>': <reason>".
[[noreturn]] void fail_errno(std::string_view action, std::string_view path);
[[noreturn]] void fail_errno(std::string_view action, std::string_view path, int error_number);

/// Runs `body`; an Error from it gets a context.
template <typename Body>
decltype(auto) within(std::string_view context, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    throw error.in(std::string(context));
  }
}

/// The same with a context that is made only for an Error, for code that runs 20,000 times.
template <std::invocable Context, typename Body>
decltype(auto) within(Context&& context, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    throw error.in(std::string(std::forward<Context>(context)()));
  }
}

/// Untrusted text for a terminal: control characters, invisible ones, those that turn the direction of text,
/// and bytes that are not characters become \xNN. `lines`: line feeds and tabs stay.
std::string shown(std::string_view text, bool lines = false);

/// The same in quotes, at most `limit` bytes of it.
std::string quote(std::string_view text, size_t limit = 120);

/// A message as one line: line breaks become "; ", the rest as in `shown`.
std::string one_line(std::string_view message);

/// "a, b, c and 17 more".
std::string listed(const std::vector<std::string>& names, size_t limit = 20);

/// The `candidates` most similar to `name`, nearest first, at most `limit`: by edit distance without case;
/// candidates that begin with `name` are near.
std::vector<std::string> nearest(std::string_view name, const std::vector<std::string>& candidates,
                                 size_t limit = 3);

}  // namespace cbk
