#include "host/config/config.hpp"

#include <algorithm>

#include "host/base/file.hpp"
#include "host/config/yaml.hpp"
#include "host/value/json.hpp"

namespace cbk {
namespace {

constexpr uint64_t max_size = 8ULL << 20;
constexpr int max_depth = 500;
constexpr size_t max_values = 100'000;  // with about 600 bytes for what a command makes of each

Value parse_json_config(std::string_view text, const ConfigWarning& warn) {
  JsonReadOptions options;
  options.python = true;
  options.keep_spelling = true;
  options.warn = warn;
  return parse_json(text, options);
}

/// A text whose name is neither YAML nor JSON. One that begins like JSON is tried as JSON first: YAML reads
/// most of it too, but with other rules for numbers.
Value parse_unnamed(std::string_view text, const ConfigWarning& warn) {
  const size_t start = text.find_first_not_of(" \t\r\n");
  if (start != std::string_view::npos && (text[start] == '{' || text[start] == '[')) {
    std::vector<std::string> warnings;
    try {
      Value config =
          parse_json_config(text, [&](std::string warning) { warnings.push_back(std::move(warning)); });
      if (warn) std::for_each(warnings.begin(), warnings.end(), warn);
      return config;
    } catch (const Error&) {  // NOLINT: YAML has its say below
    }
  }
  return yaml::read(text, warn);
}

/// The values in a tree, up to `most` and one more: aliases of YAML can name more than there are in the file.
size_t count_values(const Value& value, size_t most) {
  size_t count = 1;
  const auto add = [&](const Value& item) {
    if (count <= most) count += count_values(item, most - count + 1);
  };
  if (value.is(Value::Kind::dict)) {
    for (const auto& [key, item] : value.as_dict().entries()) add(item);
  } else if (value.is(Value::Kind::sequence)) {
    for (const Value& item : value.as_sequence().items) add(item);
  }
  return count;
}

Value refuse_crowded(Value config) {
  if (count_values(config, max_values) > max_values)
    fail(Errc::format, "it has more than {} values; is it the config of a model?", max_values);
  return config;
}

bool is_date(const Value& value) {
  return value.is(Value::Kind::object) && value.as_object().type.starts_with("datetime.");
}

/// Python's sorted() over keys of one kind; keys of different kinds keep their order.
void sort_entries(std::vector<Dict::Entry>& entries) {
  const auto all = [&](auto&& is_kind) {
    return std::all_of(entries.begin(), entries.end(),
                       [&](const Dict::Entry& entry) { return is_kind(entry.first); });
  };
  const auto by = [&](auto&& less) {
    std::stable_sort(entries.begin(), entries.end(),
                     [&](const Dict::Entry& a, const Dict::Entry& b) { return less(a.first, b.first); });
  };
  if (all([](const Value& key) { return key.is(Value::Kind::string); })) {
    by([](const Value& a, const Value& b) { return a.as_string() < b.as_string(); });
  } else if (all([](const Value& key) {
               return key.is(Value::Kind::integer) || key.is(Value::Kind::real);
             })) {
    by([](const Value& a, const Value& b) { return a.as_double() < b.as_double(); });
  }
}

/// A copy with sorted keys, and for JSON with dates as text.
Value arranged(const Value& value, bool sort, bool dates_as_text, int depth = 0) {
  if (depth > max_depth)
    fail(Errc::value, "nested deeper than {} levels, or a value that holds itself", max_depth);
  if (dates_as_text && is_date(value)) return value.as_object().repr;
  if (value.is(Value::Kind::sequence)) {
    auto out = std::make_shared<Sequence>(value.as_sequence());
    for (Value& item : out->items) item = arranged(item, sort, dates_as_text, depth + 1);
    return out;
  }
  if (!value.is(Value::Kind::dict)) return value;
  const Dict::Entries source = value.as_dict().entries();
  std::vector<Dict::Entry> entries(source.begin(), source.end());
  if (sort) sort_entries(entries);
  auto out = std::make_shared<Dict>(value.as_dict().kind);
  out->reserve(entries.size());
  for (auto& [key, item] : entries) out->set(std::move(key), arranged(item, sort, dates_as_text, depth + 1));
  return out;
}

}  // namespace

std::optional<ConfigFormat> config_format_of(const fs::path& path) {
  const fs::path suffix = path.extension();
  if (suffix == ".yaml" || suffix == ".yml") return ConfigFormat::yaml;
  if (suffix == ".json") return ConfigFormat::json;
  return std::nullopt;
}

ConfigFormat parse_config_format(std::string_view name) {
  if (name == "yaml") return ConfigFormat::yaml;
  if (name == "json") return ConfigFormat::json;
  fail(Errc::usage, "{} is not a format of configs; known are yaml and json", quote(name));
}

Value load_config(const fs::path& path, const ConfigWarning& warn) {
  const ConfigWarning warn_of_file = [&](const std::string& warning) {
    if (warn) warn(fmt::format("the config '{}', {}", path.string(), warning));
  };
  const std::string text = read_file(path, max_size);
  return within(fmt::format("cannot read the config '{}'", path.string()), [&] {
    const auto format = config_format_of(path);
    try {
      return refuse_crowded(format ? parse_config(text, *format, warn_of_file)
                                   : parse_unnamed(text, warn_of_file));
    } catch (const Error&) {
      if (text.find('\0') == std::string::npos) throw;
      fail(Errc::format, "it is a binary file, perhaps a checkpoint; expected JSON or YAML");
    }
  });
}

Value parse_config(std::string_view text, ConfigFormat format, const ConfigWarning& warn) {
  if (text.size() > max_size) {
    fail(Errc::format, "a config of {}; at most {} are read", format_size(text.size()),
         format_size(max_size));
  }
  return format == ConfigFormat::json ? parse_json_config(text, warn) : yaml::read(text, warn);
}

std::string dump_config(const Value& value, ConfigFormat format, const ConfigWriteOptions& options) {
  if (options.indent < 2 || options.indent > 9)
    fail(Errc::usage, "the indent should be from 2 to 9, not {}", options.indent);
  const bool is_json = format == ConfigFormat::json;
  const Value tree = options.sort_keys || is_json ? arranged(value, options.sort_keys, is_json) : value;
  if (!is_json) return yaml::write(tree, options.indent);
  JsonWriteOptions json;
  json.indent = options.indent;
  json.python = true;
  return to_json(tree, json) + "\n";
}

}  // namespace cbk
