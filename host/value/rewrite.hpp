// A tree rebuilt with other paths and other leaves, for copies with filters, renames and casts.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "host/base/memory_budget.hpp"
#include "host/value/value.hpp"

namespace cbk {

struct Rewrite {
  /// The new dotted path of a leaf, or nothing to leave it out. Empty: paths are kept.
  std::function<std::optional<std::string>(const std::string& path, const Value& leaf)> path;
  /// The new leaf. Called once per shared leaf, so that ties are kept. Empty: leaves are kept.
  std::function<Value(const std::string& path, const Value& leaf)> leaf;
  /// Charged for new values; unset: nothing is charged.
  MemoryPtr memory;
};

/// Containers (records, too) keep their kinds, their keys' kinds and their order as far as paths are kept.
/// The changed middle of a path becomes one key with dots ("model.h.0.weight" to "net.h.0.weight" puts h
/// below "net"). What is only put before a dotted key becomes part of it: a state dict stays flat. Containers
/// that lose all their leaves are removed; items of a list move up if others are removed. Two leaves with one
/// path are a `key` error that names both. The input is not changed; unchanged parts are shared with it.
Value rewrite(const Value& root, const Rewrite& rules);

}  // namespace cbk
