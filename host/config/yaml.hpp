// One YAML document to Value and back; other code uses host/config/config.hpp.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "host/value/value.hpp"

namespace cbk::yaml {

/// Anchors, aliases and merge keys are resolved into separate copies. `warn`, if set, receives keys that a
/// map has twice. Errors: `format` with line and column; `refused` for tags beyond YAML's own.
Value read(std::string_view text, const std::function<void(std::string)>& warn = {});

/// Block style, laid out as in PyYAML.
std::string write(const Value& value, int indent);

}  // namespace cbk::yaml
