// One YAML document to Value and back; host/config/config.hpp is the door for everybody else.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "host/value/value.hpp"

namespace cbk::yaml {

/// Anchors, aliases and merge keys are resolved into copies of their own. `warn`, if set, gets the keys
/// that one map has twice. Errors: `format` with line and column; `refused` for tags beyond YAML's own.
Value read(std::string_view text, const std::function<void(std::string)>& warn = {});

/// Block style, laid out as PyYAML does.
std::string write(const Value& value, int indent);

}  // namespace cbk::yaml
