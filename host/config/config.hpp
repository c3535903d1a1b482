// Configs: YAML and JSON files to Value and back. Comments and quoting styles are lost, nothing else: order,
// kinds and the spelling of numbers (0x1F, 1_000, 1e-5) survive. Reading and writing are bounded in size,
// depth and aliases.
#pragma once

#include <filesystem>
#include <functional>
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

/// Gets what reading a config lost: a key that is there twice keeps its last value, as in Python.
using ConfigWarning = std::function<void(std::string)>;

/// The format follows from the suffix, else from the content. Errors and warnings name the file, line and
/// column.
Value load_config(const fs::path& path, const ConfigWarning& warn = {});

/// Errors: `format` with line and column; `refused` for tags that would make objects.
Value parse_config(std::string_view text, ConfigFormat format, const ConfigWarning& warn = {});

struct ConfigWriteOptions {
  int indent = 4;          // 2 to 9
  bool sort_keys = false;  // all the way down
};

/// Ends with a newline. Errors: `value`, with the path of what a config cannot hold (a tensor, say).
std::string dump_config(const Value& value, ConfigFormat format, const ConfigWriteOptions& options = {});

}  // namespace cbk
