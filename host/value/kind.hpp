// The kind of a value in messages.
#pragma once

#include <string>

#include "host/value/value.hpp"

namespace cbk {

/// "an int", "a dict".
inline std::string a_kind(const Value& value) {
  const std::string name = value.kind_name();
  const bool has_vowel = std::string_view("aeioAEIO").find(name.front()) != std::string_view::npos;
  return (has_vowel ? "an " : "a ") + name;
}

}  // namespace cbk
