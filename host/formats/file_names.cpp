#include "host/formats/file_names.hpp"

#include <fmt/format.h>

namespace cbk {
namespace {

constexpr std::string_view of = "-of-";

bool is_number(std::string_view text) {
  constexpr size_t least_digits = 5;
  return text.size() >= least_digits && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string part(size_t number, size_t count) {
  return fmt::format("{:05}{}", number, end_of_parts(count));
}

}  // namespace

std::optional<std::string_view> before_part(std::string_view name, std::string_view separator) {
  const size_t middle = name.rfind(of);
  if (middle == std::string_view::npos || !is_number(name.substr(middle + of.size()))) return std::nullopt;
  const size_t begin = name.substr(0, middle).rfind(separator);
  if (begin == std::string_view::npos) return std::nullopt;
  const size_t number = begin + separator.size();
  if (!is_number(name.substr(number, middle - number))) return std::nullopt;
  return name.substr(0, begin);
}

std::string shard_name(std::string_view stem, size_t number, size_t count, std::string_view suffix) {
  return fmt::format("{}-{}{}", stem, part(number, count), suffix);
}

std::string end_of_parts(size_t count) {
  return fmt::format("{}{:05}", of, count);
}

bool is_variant_index_name(std::string_view name) {
  constexpr std::string_view end = ".json";
  if (!name.ends_with(end)) return false;
  const std::string_view stem = name.substr(0, name.size() - end.size());
  const size_t dot = stem.rfind('.');
  return dot != std::string_view::npos && dot + 1 < stem.size() && stem.substr(0, dot).ends_with(".index");
}

std::string data_file_name(std::string_view prefix, size_t number, size_t count) {
  return fmt::format("{}.data-{}", prefix, part(number, count));
}

std::optional<std::string> prefix_of_data_file(std::string_view name) {
  const auto prefix = before_part(name, ".data-");
  return prefix ? std::optional<std::string>(*prefix) : std::nullopt;
}

}  // namespace cbk
