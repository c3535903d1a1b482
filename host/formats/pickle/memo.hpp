// The memo of a pickle: numbered values that can be fetched again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "host/formats/pickle/arena.hpp"

namespace cbk::pickle {

/// A pickler numbers nearly everything and fetches little. So the pickle is scanned first, and values that
/// are never fetched are not kept, so that they can be freed early.
class Memo {
 public:
  /// Memory is charged to `arena`.
  Memo(std::string_view pickle, Arena& arena);

  /// The next number in the order of MEMOIZE.
  [[nodiscard]] uint64_t next() const { return size_; }
  /// Whether the value is kept. Errors: `format` for a number far beyond a pickler's numbering.
  bool put(uint64_t index, const Value& value);
  /// Whether `put` of this number keeps a value, or fails.
  [[nodiscard]] bool keeps(uint64_t index) const { return !may_put(index) || place_of(index).has_value(); }
  [[nodiscard]] bool may_put(uint64_t index) const { return index < limit_; }
  /// Numbers below this one were put, for values that are not kept.
  void pass_to(uint64_t next) { size_ = std::max(size_, next); }
  /// The value that `get` returns; nullptr: it fails.
  [[nodiscard]] const Value* find(uint64_t index) const;
  /// Errors: `format` for a number without a value.
  const Value& get(uint64_t index);
  /// Replaces the value of a kept number.
  void replace(uint64_t index, const Value& value) { values_.at(place_of(index).value()) = value; }

  /// The number of the opcodes with text arguments. Errors: `format`.
  static uint64_t parse_index(std::string_view text);

 private:
  static constexpr size_t word_bits = 64;
  /// Which of 64 numbers are ever fetched, and how many smaller ones are.
  struct Fetched {
    uint64_t bits = 0;
    uint32_t before = 0;
  };

  void look_through(std::string_view pickle);
  /// In `values_`; nothing: the number is never fetched.
  [[nodiscard]] std::optional<size_t> place_of(uint64_t index) const;

  Arena& arena_;
  uint64_t limit_;     // of a number
  uint64_t size_ = 0;  // 1 + the largest number put
  std::vector<Fetched> fetched_;
  std::vector<Value> values_;  // of those that are fetched
  std::vector<bool> is_set_;
};

}  // namespace cbk::pickle
