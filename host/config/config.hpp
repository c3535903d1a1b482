// Configs: YAML and JSON files to Value and back. Only comments and quoting styles are lost: order, kinds and
// the spelling of numbers (0x1F, 1_000, 1e-5) are kept. Reading and writing are bounded in size, depth and
// aliases.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "host/value/value.hpp"

namespace cbk {

namespace fs = std::filesystem;

enum class ConfigFormat { yaml, json };

/// By suffix (.yaml .yml .json); nothing for any other.
std::optional<ConfigFormat> config_format_of(const fs::path& path);

/// "yaml" or "json"; anything else is a `usage` error.
ConfigFormat parse_config_format(std::string_view name);

/// Receives warnings about lost data: a repeated key keeps its last value, as in Python.
using ConfigWarning = std::function<void(std::string)>;

/// The format follows from the suffix, else from the content. Errors and warnings name the file, line and
/// column.
Value load_config(const fs::path& path, const ConfigWarning& warn = {});

/// Errors: `format` with line and column; `refused` for tags that would create objects.
Value parse_config(std::string_view text, ConfigFormat format, const ConfigWarning& warn = {});

/// The line, from 1, of the last of the keys that leads on from the one before ("trainer", "init", "loop";
/// items of a list by their number): for messages about a field of a file that was read. Nothing if there is
/// none.
std::optional<int64_t> line_of_field(const fs::path& path, std::span<const std::string> keys);

struct ConfigWriteOptions {
  int indent = 4;          // 2 to 9
  bool sort_keys = false;  // all the way down
};

/// Ends with a newline. Errors: `value`, with the path of a value that a config cannot hold, such as a
/// tensor.
std::string dump_config(const Value& value, ConfigFormat format, const ConfigWriteOptions& options = {});

}  // namespace cbk
