// Errors as JSON, for programs.
#pragma once

#include <string>
#include <string_view>

#include "host/base/error.hpp"

namespace cbk {

/// {"error": {"code": …, "message": …}} on one line, with the parts of the error. `message` is its text.
std::string error_json(std::string_view code, const ErrorParts& parts);

}  // namespace cbk
