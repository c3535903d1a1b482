// Keys as text, and values by dotted paths.
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "host/value/value.hpp"

namespace cbk {

const Value& insides(const Value& value) {
  if (!value.is(Value::Kind::object)) return value;
  const Object& object = value.as_object();
  const bool has_attributes =
      object.is_record && object.state.is(Value::Kind::dict) && !object.state.as_dict().empty();
  return has_attributes ? object.state : value;
}

namespace {

/// `parts`: how many are left; what a script asks for may hold itself.
std::string text_of(const Value& key, size_t& parts) {
  if (parts == 0) return "…";
  --parts;
  switch (key.kind()) {
    case Value::Kind::none:
      return "None";
    case Value::Kind::boolean:
      return key.as_bool() ? "True" : "False";
    case Value::Kind::integer:
      return key.as_integer().fits ? std::to_string(key.as_int()) : *key.as_integer().digits;
    case Value::Kind::real: {
      const double real = key.as_double();
      if (real == std::floor(real) && std::abs(real) < 1e16) return fmt::format("{:.1f}", real);
      return fmt::format("{}", real);
    }
    case Value::Kind::string:
      return key.as_string();
    case Value::Kind::sequence: {
      std::string text = "(";
      const auto& items = key.as_sequence().items;
      for (size_t i = 0; i < items.size() && parts > 0; ++i) {
        text += (i > 0 ? ", " : "") + text_of(items[i], parts);
      }
      return text + (items.size() == 1 ? ",)" : ")");
    }
    case Value::Kind::bytes:
      return "b" + quote(key.as_bytes().data);
    case Value::Kind::complex:
      return fmt::format("({}{:+}j)", key.as_complex().real(), key.as_complex().imag());
    case Value::Kind::object:
      return key.as_object().repr.empty() ? key.kind_name() : key.as_object().repr;
    default:
      return key.kind_name();
  }
}

}  // namespace

std::string key_text(const Value& key) {
  size_t parts = 1000;  // keys of files have 256 at most
  return text_of(key, parts);
}

const Value* child(const Value& place, std::string_view part) {
  const Value& container = insides(place);
  if (container.is(Value::Kind::dict)) {
    const Dict& dict = container.as_dict();
    if (const Value* value = dict.find(part)) return value;
    for (const auto& [key, value] : dict.entries()) {
      if (!key.is(Value::Kind::string) && key_text(key) == part) return &value;
    }
    return nullptr;
  }
  if (!container.is(Value::Kind::sequence)) return nullptr;
  const auto& items = container.as_sequence().items;
  size_t position = 0;
  auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), position);
  const bool is_index = error == std::errc{} && end == part.data() + part.size();
  return is_index && position < items.size() ? &items[position] : nullptr;
}

namespace {

class PathFinder {
 public:
  const Value* find(const Value& root, std::string_view path, int depth = 0) {
    constexpr int max_depth = 1000;  // no tree that can be walked is deeper
    if (path.empty()) return &root;
    if (depth > max_depth) return nullptr;
    if (const Value* value = child(root, path)) return value;
    for (size_t dot = path.rfind('.'); dot != std::string_view::npos && dot > 0;
         dot = path.rfind('.', dot - 1)) {
      const Value* value = child(root, path.substr(0, dot));
      const std::string_view rest = path.substr(dot + 1);
      if (value == nullptr || !tried_.emplace(value->identity(), rest.size()).second) continue;
      if (const Value* found = find(*value, rest, depth + 1)) return found;
    }
    return nullptr;
  }

 private:
  /// Containers, and the part of the path that was searched in them. A shared one can be reached on many
  /// paths.
  std::set<std::pair<const void*, size_t>> tried_;
};

}  // namespace

const Value* find_path(const Value& root, std::string_view path) {
  return PathFinder().find(root, path);
}

}  // namespace cbk
