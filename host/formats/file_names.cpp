#include "host/formats/file_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace cbk {
namespace {

constexpr auto torch_suffixes = std::to_array<std::string_view>({".pt", ".pth", ".bin", ".ckpt"});
constexpr auto safetensors_suffixes = std::to_array<std::string_view>({".safetensors"});
constexpr auto h5_suffixes = std::to_array<std::string_view>({".mdl", ".h5", ".hdf5", ".hdf"});
constexpr auto tensorflow_suffixes = std::to_array<std::string_view>({bundle_index_suffix});

constexpr auto npy_suffixes = std::to_array<std::string_view>({".npy"});
constexpr auto npz_suffixes = std::to_array<std::string_view>({".npz"});

constexpr std::array<FormatNames, 7> formats = {{
    {"torch", torch_suffixes, ".bin", "pytorch_model", "pytorch_model.bin"},
    {"safetensors", safetensors_suffixes, ".safetensors", "model", "model.safetensors"},
    {"h5", h5_suffixes, ".h5", "model", ""},
    {"tensorflow", tensorflow_suffixes, "", "", ""},
    {"npy", npy_suffixes, "", "", ""},
    {"npz", npz_suffixes, "", "", ""},
    {"raw", {}, "", "", ""},  // any name: the bytes of one tensor
}};

constexpr std::string_view last_with_suffixes = "npz";

constexpr std::string_view of = "-of-";

bool is_number(std::string_view text) {
  constexpr size_t least_digits = 5;
  return text.size() >= least_digits && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// "model" of "model-00001-of-00003", for any separator between the two; nothing if this cannot be the name
/// of a part.
std::optional<std::string_view> before_part(std::string_view text, std::string_view separator) {
  const size_t middle = text.rfind(of);
  if (middle == std::string_view::npos || !is_number(text.substr(middle + of.size()))) return std::nullopt;
  const size_t begin = text.substr(0, middle).rfind(separator);
  if (begin == std::string_view::npos) return std::nullopt;
  const size_t number = begin + separator.size();
  if (!is_number(text.substr(number, middle - number))) return std::nullopt;
  return text.substr(0, begin);
}

std::string part(size_t number, size_t count) {
  return fmt::format("{:05}{}", number, end_of_parts(count));
}

}  // namespace

std::span<const FormatNames> all_format_names() {
  return formats;
}

const FormatNames* names_of(std::string_view format) {
  const auto* found = std::ranges::find(formats, format, &FormatNames::format);
  return found == formats.end() ? nullptr : found;
}

const FormatNames* names_by_suffix(const fs::path& file) {
  const std::string suffix = file.extension().string();
  const auto* found = std::ranges::find_if(formats, [&](const FormatNames& names) {
    return std::ranges::find(names.suffixes, suffix) != names.suffixes.end();
  });
  return found == formats.end() ? nullptr : found;
}

std::string list_of_suffixes() {
  std::string list;
  for (const FormatNames& names : formats) {
    if (names.suffixes.empty()) continue;
    if (!list.empty()) list += names.format == last_with_suffixes ? " or " : ", ";
    list += fmt::format("{} ({})", fmt::join(names.suffixes, " "), names.format);
  }
  return list;
}

std::string shard_name(std::string_view stem, size_t number, size_t count, std::string_view suffix) {
  return fmt::format("{}-{}{}", stem, part(number, count), suffix);
}

std::string end_of_parts(size_t count) {
  return fmt::format("{}{:05}", of, count);
}

bool is_shard_name(const fs::path& file) {
  const FormatNames* names = names_by_suffix(file);
  return names != nullptr && !names->shard_suffix.empty() && before_part(file.stem().string(), "-");
}

bool is_variant_index_name(std::string_view name) {
  constexpr std::string_view end = ".json";
  if (!name.ends_with(end)) return false;
  const std::string_view stem = name.substr(0, name.size() - end.size());
  const size_t dot = stem.rfind('.');
  return dot != std::string_view::npos && dot + 1 < stem.size() && stem.substr(0, dot).ends_with(".index");
}

bool is_gguf_part_name(const fs::path& file) {
  return file.extension() == gguf_suffix && before_part(file.stem().string(), "-");
}

bool is_written_shard_name(std::string_view name) {
  if (name.ends_with(shard_index_suffix)) return true;
  return std::ranges::any_of(formats, [&](const FormatNames& names) {
    if (!names.usual.empty() && name == names.usual) return true;
    return !names.shard_suffix.empty() && name.ends_with(names.shard_suffix) &&
           before_part(name.substr(0, name.size() - names.shard_suffix.size()), "-");
  });
}

std::string data_file_name(std::string_view prefix, size_t number, size_t count) {
  return fmt::format("{}.data-{}", prefix, part(number, count));
}

std::optional<std::string> prefix_of_data_file(std::string_view name) {
  const auto prefix = before_part(name, ".data-");
  return prefix ? std::optional<std::string>(*prefix) : std::nullopt;
}

}  // namespace cbk
