// Expressions as text: which bytes of which files they read, and what they compute. Two expressions with the
// same text have the same elements, as long as the files do not change.
#pragma once

#include <string>
#include <unordered_map>

#include "host/tensor/expression.hpp"

namespace cbk {

/// Describes many expressions; those that are used several times are described once. Not thread-safe.
class Descriptions {
 public:
  /// "3 float32 [12] cast(2)": a number, then dtype, size and parameters with the numbers of the inputs. New
  /// expressions are appended to `out`, one a line. Returns the number.
  size_t add(const Expression& expression, std::string& out);

 private:
  std::unordered_map<const Expression*, size_t> known_;
};

}  // namespace cbk
