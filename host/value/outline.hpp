// A list of keys as an indented tree, with one line above keys that share a beginning.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace cbk {

/// Entries 0 to `count` - 1. None is kept: names are requested when they are needed. Parts of a
/// name end at dots outside of braces ("a.layers.{0..31}.w"), or, in TensorFlow's names, after slashes.
struct OutlineEntries {
  size_t count = 0;
  std::function<std::string(size_t)> name;
};

struct OutlineVisitor {
  /// The line of an entry.
  std::function<void(size_t indent, std::string_view label, size_t entry)> entry;
  /// A line above those of `entries`; their names begin with `name`.
  std::function<void(size_t indent, std::string_view label, std::span<const uint32_t> entries,
                     std::string_view name)>
      container;
};

/// Visits all lines in order. Parts that are numbers, or folded numbers, are sorted; names keep their order.
/// A
/// container with one entry shares the line with it. Below 40 levels, names are not divided.
void outline(const OutlineEntries& entries, const OutlineVisitor& visitor);

}  // namespace cbk
