// Shell-like patterns over whole names: * (any text, dots too), ?, [a-z], [!a-z], {a,b}; a backslash takes
// the next character literally. Matching takes time linear in pattern × text, whatever the pattern.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cbk {

class Glob {
 public:
  /// Errors: `usage` for an unclosed bracket or brace, or for more than 1000 alternatives.
  explicit Glob(std::string_view pattern);
  [[nodiscard]] bool matches(std::string_view text) const;
  /// A pattern without anything special: at most one text matches.
  [[nodiscard]] static bool is_literal(std::string_view pattern);

 private:
  std::vector<std::string> alternatives_;  // without braces
};

}  // namespace cbk
