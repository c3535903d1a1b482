// A tree made again with other paths and other leaves: what copying with filters, renames and casts comes
// down to.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "host/base/memory_budget.hpp"
#include "host/value/value.hpp"

namespace cbk {

struct Rewrite {
  /// The new dotted path of a leaf, or nothing to leave it out. Empty: paths stay.
  std::function<std::optional<std::string>(const std::string& path, const Value& leaf)> path;
  /// The new leaf. Called once per shared leaf, so that ties stay ties. Empty: leaves stay.
  std::function<Value(const std::string& path, const Value& leaf)> leaf;
  /// Pays for what is made anew; unset: nobody does.
  MemoryPtr memory;
};

/// Containers (records, too) keep their kinds, their keys' kinds and their order as far as paths stay; the
/// changed middle of a path becomes one key with dots ("model.h.0.weight" to "net.h.0.weight" puts h below
/// "net"). Containers that lose all their leaves go; items of a list move up when others leave. Two leaves
/// with one path are a `key` error that names both. The input is not changed; what stays as it is, is shared
/// with it.
Value rewrite(const Value& root, const Rewrite& rules);

}  // namespace cbk
