#include "host/formats/dcp/metadata.hpp"

#include <unordered_map>

#include "host/base/hash.hpp"
#include "host/formats/pickle/torch_tensors.hpp"
#include "host/formats/pickle/unpickler.hpp"
#include "host/value/attribute.hpp"

namespace cbk::dcp {
namespace {

constexpr std::string_view metadata_class = "torch.distributed.checkpoint.metadata";
constexpr uint64_t chunk_bytes = 256;  // of memory, about
constexpr size_t deepest_path = 100;

bool is_of(const Value& value, std::string_view name) {
  if (!value.is(Value::Kind::object)) return false;
  const std::string& type = value.as_object().type;
  return type.ends_with(name) && type.size() > name.size() && type[type.size() - name.size() - 1] == '.';
}

const Dict& table(const Value& metadata, std::string_view name) {
  const Value& value = attribute(metadata, name);
  if (!value.is(Value::Kind::dict)) fail(Errc::format, "{} should be a dict, not {}", name, a_kind(value));
  return value.as_dict();
}

uint64_t number(const Value& value, std::string_view name) {
  const int64_t found = attribute(value, name).as_int();
  if (found < 0) fail(Errc::format, "{} is negative", quote(name));
  return static_cast<uint64_t>(found);
}

/// The dtype of TensorProperties: an attribute, or the first item of its state.
DType dtype_of(const Value& properties) {
  const Value& state = insides(properties);
  const Value* first = state.is(Value::Kind::dict) ? state.as_dict().find(Value(0)) : nullptr;
  const Value& dtype = first != nullptr ? *first : attribute(properties, "dtype");
  if (!dtype.is(Value::Kind::object) || dtype.as_object().type != "torch.dtype")
    fail(Errc::format, "the dtype of a tensor is {}", a_kind(dtype));
  return parse_dtype(dtype.as_object().repr);
}

Stored place_of(const Value& stored) {
  const Value* packing = insides(stored).find("transform_descriptors");
  if (packing != nullptr && !packing->is_none() &&
      !(packing->is(Value::Kind::sequence) && packing->as_sequence().items.empty()))
    fail(Errc::unsupported, "its pieces are transformed, for instance compressed, which is not read");
  return {attribute(stored, "relative_path").as_string(), number(stored, "offset"), number(stored, "length")};
}

/// "name" of a value, "name@0,4" of a piece.
std::string place_key(const std::string& name, const Shape* offsets) {
  return offsets == nullptr ? name : fmt::format("{}@{}", name, fmt::join(*offsets, ","));
}

using Places = std::unordered_map<std::string, Stored, KeyedHash>;

Places places_of(const Value& metadata, MemoryBudget& memory) {
  Places out;
  for (const auto& [index, stored] : table(metadata, "storage_data").entries()) {
    const std::string& name = attribute(index, "fqn").as_string();
    within(quote(name), [&, &index = index, &stored = stored] {
      const Value& offset = attribute(index, "offset");
      const Shape offsets = offset.is_none() ? Shape() : pickle::shape_of(offset);
      memory.charge(chunk_bytes + name.size());
      const std::string key = place_key(name, offset.is_none() ? nullptr : &offsets);
      if (!out.emplace(key, place_of(stored)).second) fail(Errc::format, "a piece has two places");
    });
  }
  return out;
}

std::optional<Stored> look_up(const Places& places, const std::string& key) {
  const auto found = places.find(key);
  return found == places.end() ? std::nullopt : std::optional(found->second);
}

void read_tensor(Entry& entry, const Value& described, const Places& places, MemoryBudget& memory) {
  entry.is_tensor = true;
  entry.dtype = dtype_of(attribute(described, "properties"));
  entry.shape = pickle::shape_of(attribute(described, "size"));
  checked_mul(static_cast<uint64_t>(numel_of(entry.shape)), size_of(entry.dtype), "a tensor");
  for (const Value& one : attribute(described, "chunks").as_sequence().items) {
    memory.charge(chunk_bytes);
    Chunk chunk{pickle::shape_of(attribute(one, "offsets")), pickle::shape_of(attribute(one, "sizes")), {}};
    chunk.place = look_up(places, place_key(entry.name, &chunk.offsets));
    entry.chunks.push_back(std::move(chunk));
  }
}

/// The path in the tree: of the planner, if it kept one.
std::vector<Value> path_of(const std::string& name, const Dict* plan) {
  const Value* path = plan == nullptr ? nullptr : plan->find(std::string_view(name));
  if (path == nullptr || !path->is(Value::Kind::sequence) || path->as_sequence().items.empty()) return {name};
  if (path->as_sequence().items.size() > deepest_path) fail(Errc::format, "a path of too many parts");
  for (const Value& part : path->as_sequence().items) {
    if (!part.is(Value::Kind::string) && !part.is(Value::Kind::integer))
      fail(Errc::format, "a path with {} in it", a_kind(part));
  }
  return path->as_sequence().items;
}

}  // namespace

bool looks_like_metadata(ByteView head) {
  const std::string_view text = as_text(head);
  return text.starts_with('\x80') && text.find(metadata_class) != std::string_view::npos;
}

Metadata read_metadata(std::string_view pickle, MemoryBudget& memory) {
  pickle::UnpickleOptions options;
  options.budget = &memory;
  options.describes = true;
  const Value root = pickle::load(pickle, options);
  if (!is_of(root, "Metadata")) fail(Errc::format, "it holds {}, not the metadata of a folder", a_kind(root));
  const Places places = places_of(root, memory);
  const Value* plan = insides(root).find("planner_data");
  const Dict* paths = plan != nullptr && plan->is(Value::Kind::dict) ? &plan->as_dict() : nullptr;
  Metadata out;
  if (const Value* version = insides(root).find("version");
      version != nullptr && version->is(Value::Kind::string))
    out.version = version->as_string();
  for (const auto& [key, described] : table(root, "state_dict_metadata").entries()) {
    const std::string& name = key.as_string();
    within(quote(name), [&, &described = described] {
      Entry entry{.name = name, .path = path_of(name, paths), .shape = {}, .chunks = {}, .place = {}};
      memory.charge(chunk_bytes + 2 * name.size());
      if (is_of(described, "BytesStorageMetadata")) {
        entry.place = look_up(places, name);
      } else {
        read_tensor(entry, described, places, memory);
      }
      out.entries.push_back(std::move(entry));
    });
  }
  return out;
}

}  // namespace cbk::dcp
