#include "host/formats/h5/metadata.hpp"

#include <charconv>

#include "host/value/json.hpp"

namespace cbk::h5 {
namespace {

// The pieces between the shape, the dtype and the code of a tensor.
constexpr std::string_view before_shape =
    "{\n        \"__TORCH__\": true,\n        \"shapes\": [\n            [";
constexpr std::string_view before_extent = "\n                ";
constexpr std::string_view after_extents = "\n            ";
constexpr std::string_view before_dtype = "]\n        ],\n        \"dtypes\": [\n            \"torch.";
constexpr std::string_view before_code = "\"\n        ],\n        \"rtfx_dtypes\": [\n            ";
constexpr std::string_view after_code =
    "\n        ],\n        \"__TYPE__\": \"TorchTensorSerializer\",\n        \"__NUMPY__\": true,\n"
    "        \"compressed\": false\n    }";

bool eat(std::string_view& text, std::string_view piece) {
  if (!text.starts_with(piece)) return false;
  text.remove_prefix(piece.size());
  return true;
}

bool eat_number(std::string_view& text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

}  // namespace

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
  // One level deeper than the object alone would be.
  const std::string object = to_json(metadata, {.indent = 4, .ascii = true, .python = true});
  for (const char c : object) {
    out += c;
    if (c == '\n') out += "    ";
  }
  out += metadata_tail;
  return out;
}

std::string tensor_metadata(const TensorMetadata& metadata) {
  std::string out(before_shape);
  for (size_t i = 0; i < metadata.shape.size(); ++i) {
    if (i > 0) out += ',';
    out += before_extent;
    out += std::to_string(metadata.shape[i]);
  }
  if (!metadata.shape.empty()) out += after_extents;
  out += before_dtype;
  out += name_of(metadata.dtype);
  out += before_code;
  out += std::to_string(metadata.release_code);
  out += after_code;
  return out;
}

std::optional<TensorMetadata> match_tensor_metadata(std::string_view object) {
  TensorMetadata found;
  if (!eat(object, before_shape)) return std::nullopt;
  while (eat(object, before_extent)) {
    found.shape.emplace_back();
    if (!eat_number(object, found.shape.back())) return std::nullopt;
    if (!eat(object, ",")) break;
  }
  if (!found.shape.empty() && !eat(object, after_extents)) return std::nullopt;
  if (!eat(object, before_dtype)) return std::nullopt;
  const std::string_view name = object.substr(0, object.find('"'));
  const auto dtype = find_dtype(name);
  if (!dtype) return std::nullopt;
  found.dtype = *dtype;
  object.remove_prefix(name.size());
  if (!eat(object, before_code) || !eat_number(object, found.release_code) || object != after_code)
    return std::nullopt;
  return found;
}

}  // namespace cbk::h5
