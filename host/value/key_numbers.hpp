// The numbers in a key that may be those of layers: "a.▯.b", "a.block_▯.b", "a/b▯/c".
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

namespace cbk {

/// Finds the numbers in a key, from left to right.
class KeyNumbers {
 public:
  explicit KeyNumbers(std::string_view key);

  /// The range of the next number: digits that fill a part between dots or slashes, or end it after a '_', as
  /// in "block_00"; in TensorFlow's names, "a/b_0/_w1", digits that end a part.
  std::optional<std::pair<size_t, size_t>> next();

 private:
  std::string_view key_;
  bool is_tensorflow_;
  size_t from_ = 0;
};

}  // namespace cbk
