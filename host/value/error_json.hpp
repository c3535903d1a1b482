// An error for programs.
#pragma once

#include <string>
#include <string_view>

#include "host/base/error.hpp"

namespace cbk {

/// {"error": {"code": …, "message": …}} on one line, and the parts that the error has. `message` is its text.
std::string error_json(std::string_view code, const ErrorParts& parts);

}  // namespace cbk
