#include "host/value/error_json.hpp"

#include "host/value/json.hpp"

namespace cbk {

std::string error_json(std::string_view code, const ErrorParts& parts) {
  std::string out = fmt::format(R"({{"error": {{"code": {}, "message": {})", json_quote(code),
                                json_quote(one_line(text_of(parts))));
  const auto add = [&](std::string_view name, const std::string& text) {
    if (!text.empty()) out += fmt::format(R"(, "{}": {})", name, json_quote(one_line(text)));
  };
  add("file", parts.file);
  add("key", parts.key);
  add("field", parts.field);
  add("expected", parts.expected);
  add("found", parts.found);
  add("supported", parts.supported);
  add("advice", parts.advice);
  add("where", parts.where);
  return out + "}}";
}

}  // namespace cbk
