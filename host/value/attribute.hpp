// Attributes of records, and entries of dicts, that a format must have.
#pragma once

#include <string_view>

#include "host/value/kind.hpp"

namespace cbk {

/// Errors: `format`.
inline const Value& attribute(const Value& value, std::string_view name) {
  const Value* found = insides(value).find(name);
  if (found == nullptr) fail(Errc::format, "{} has no attribute {}", a_kind(value), quote(name));
  return *found;
}

/// nullptr: it is absent, or None.
inline const Value* find_attribute(const Value& value, std::string_view name) {
  const Value* found = insides(value).find(name);
  return found == nullptr || found->is_none() ? nullptr : found;
}

}  // namespace cbk
