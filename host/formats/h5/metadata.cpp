#include "host/formats/h5/metadata.hpp"

#include "host/value/json.hpp"

namespace cbk::h5 {

std::string metadata_head(std::string_view key) {
  const std::string quoted_key = json_quote(key, true);
  const std::string context = json_quote("[" + quoted_key + "]", true);
  const std::string tree = R"([1, {"type": "builtins.dict", "context": )" + context +
                           R"(, "children_spec": [{"type": null, "context": null, "children_spec": []}]}])";
  std::string out;
  out.reserve(400 + 8 * key.size());
  out += "{\n    \"__spec__\": [\n        {\n            ";
  out += quoted_key;
  out += ": \"*\"\n        },\n        ";
  out += json_quote(tree, true);
  out += "\n    ],\n    \"__objects__\": [\n        ";
  out += quoted_key;
  out += "\n    ],\n    ";
  out += json_quote(std::string(key) + std::string(metadata_suffix), true);
  out += ": ";
  return out;
}

std::string leaf_metadata(std::string_view key, const Value& metadata) {
  std::string out = metadata_head(key);
  // One level deeper than the object would stand alone.
  const std::string object = to_json(metadata, {.indent = 4, .ascii = true, .python = true});
  for (const char c : object) {
    out += c;
    if (c == '\n') out += "    ";
  }
  out += metadata_tail;
  return out;
}

}  // namespace cbk::h5
