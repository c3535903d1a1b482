// The meaning of plain (unquoted) YAML scalars: the rules of YAML 1.1 as in PyYAML's SafeLoader, with one
// difference: a number with an exponent (1e-5, 3e8) is a float, because that is what its author means.
#pragma once

#include <string_view>

#include "host/value/value.hpp"

namespace cbk::yaml {

enum class ScalarKind { text, null, boolean, integer, real, exponent_real, date, time, merge, value };

ScalarKind classify(std::string_view text);

/// Whether PyYAML reads it as a float.
bool is_pyyaml_float(std::string_view text);

/// Whether some reader of YAML (1.1 or 1.2) could read the plain scalar as something other than text.
bool is_ambiguous(std::string_view text);

/// The value of a plain scalar; a date becomes an Object "datetime.date" or "datetime.datetime" with its
/// spelling.
Value resolve(std::string_view text);

/// The value of `text` as an explicit kind (integer, real, boolean, null), or a `format` error.
Value convert(std::string_view text, ScalarKind kind);

}  // namespace cbk::yaml
