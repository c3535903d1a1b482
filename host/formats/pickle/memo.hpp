// The memo of a pickle: values by number, to be fetched again.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "host/formats/pickle/arena.hpp"

namespace cbk::pickle {

/// A pickler numbers nearly everything and fetches little: the pickle is looked through first, and what is
/// never fetched is not kept, so that it can be freed early.
class Memo {
 public:
  /// Memory is charged to `arena`.
  Memo(std::string_view pickle, Arena& arena);

  /// The next number in the order of MEMOIZE.
  [[nodiscard]] uint64_t next() const { return size_; }
  /// Whether the value is kept. Errors: `format` for a number far beyond those of a pickler.
  bool put(uint64_t index, const Value& value);
  /// Errors: `format` for a number without a value.
  const Value& get(uint64_t index);
  /// Another value for a number that is kept.
  void replace(uint64_t index, const Value& value) { values_.at(index) = value; }

  /// The number of the opcodes in text. Errors: `format`.
  static uint64_t parse_index(std::string_view text);

 private:
  void look_through(std::string_view pickle);

  Arena& arena_;
  uint64_t limit_;             // of a number
  uint64_t size_ = 0;          // 1 + the largest number put
  std::vector<bool> fetched_;  // ever
  std::vector<Value> values_;
  std::vector<bool> is_set_;
};

}  // namespace cbk::pickle
