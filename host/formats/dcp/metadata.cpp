#include "host/formats/dcp/metadata.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <deque>
#include <limits>
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

bool ends_in(std::string_view type, std::string_view name) {
  return type.ends_with(name) && type.size() > name.size() && type[type.size() - name.size() - 1] == '.';
}

bool is_of(const Value& value, std::string_view name) {
  return value.is(Value::Kind::object) && ends_in(value.as_object().type, name);
}

const Dict& table(const Value& metadata, std::string_view name) {
  const Value& value = attribute(metadata, name);
  if (!value.is(Value::Kind::dict)) fail(Errc::format, "{} should be a dict, not {}", name, a_kind(value));
  return value.as_dict();
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

/// What the pickle says of pieces. A folder may have 100,000: each description becomes its number here as
/// soon as it is complete, so that the pickle's values do not take the memory.
class Pieces {
 public:
  explicit Pieces(MemoryBudget& memory) : memory_(memory) {}

  std::optional<Value> replace(std::string_view type, const Value& state) {
    if (ends_in(type, "MetadataIndex")) return add(indexes_, index_of(state));
    if (ends_in(type, "ChunkStorageMetadata")) {
      Chunk chunk{
          pickle::shape_of(attribute(state, "offsets")), pickle::shape_of(attribute(state, "sizes")), {}};
      memory_.charge((chunk.offsets.size() + chunk.sizes.size()) * sizeof(int64_t));
      return add(chunks_, std::move(chunk));
    }
    if (ends_in(type, "_StorageInfo")) return add(places_, place_of(state));
    return std::nullopt;
  }

  /// Notes where each piece is.
  void put(const Dict& storage) {
    place_of_index_.reserve(storage.size());
    for (const auto& [index, place] : storage.entries()) {
      const std::string& key = at(indexes_, index, "an index of a piece");
      const Stored& stored = at(places_, place, "a place of a piece");
      if (std::max(stored.offset, stored.length) > std::numeric_limits<int64_t>::max())
        fail(Errc::format, "{}: the place of a piece is negative", quote(name_in(key)));
      if (!place_of_index_.emplace(key, &stored).second)
        fail(Errc::format, "{}: a piece has two places", quote(name_in(key)));
    }
  }

  [[nodiscard]] std::optional<Stored> value(std::string_view name) const {
    return find(index_key(name, nullptr));
  }

  [[nodiscard]] Chunk chunk(std::string_view name, const Value& number) const {
    Chunk chunk = at(chunks_, number, "a piece");
    chunk.place = find(index_key(name, &chunk.offsets));
    return chunk;
  }

 private:
  /// A text for a name, and where in a tensor the piece begins.
  [[nodiscard]] std::string index_key(std::string_view name, const Shape* offsets) const {
    const auto known = numbers_.find(name);
    return known == numbers_.end() ? "" : index_key(known->second, offsets);
  }
  static std::string index_key(uint32_t number, const Shape* offsets) {
    std::string key(sizeof number, '\0');
    std::memcpy(key.data(), &number, sizeof number);
    if (offsets != nullptr) key += '@';
    for (const int64_t offset : offsets != nullptr ? *offsets : Shape()) {
      std::array<char, 24> digits;
      const auto end = std::to_chars(digits.begin(), digits.end(), offset).ptr;
      key.append(digits.begin(), end) += ',';
    }
    return key;
  }

  [[nodiscard]] std::string_view name_in(std::string_view key) const {
    uint32_t number = 0;
    std::memcpy(&number, key.data(), sizeof number);
    return names_.at(number);
  }

  uint32_t number_of(const std::string& name) {
    if (const auto known = numbers_.find(name); known != numbers_.end()) return known->second;
    memory_.charge(chunk_bytes + name.size());
    const auto made = numbers_.emplace(name, static_cast<uint32_t>(names_.size())).first;
    names_.push_back(made->first);
    return made->second;
  }

  Stored place_of(const Value& stored) {
    const Value* packing = insides(stored).find("transform_descriptors");
    if (packing != nullptr && !packing->is_none() &&
        !(packing->is(Value::Kind::sequence) && packing->as_sequence().items.empty()))
      fail(Errc::unsupported,
           "the pieces of tensors are transformed, for instance compressed, which is not read");
    const auto number = [&](std::string_view name) {
      return static_cast<uint64_t>(attribute(stored, name).as_int());  // the sign is checked later
    };
    const std::string& path = attribute(stored, "relative_path").as_string();
    auto known = paths_.find(path);
    if (known == paths_.end()) {
      memory_.charge(chunk_bytes + 2 * path.size());
      known = paths_.emplace(path, std::make_shared<const std::string>(path)).first;
    }
    return {known->second, number("offset"), number("length")};
  }

  std::string index_of(const Value& state) {
    const uint32_t number = number_of(attribute(state, "fqn").as_string());
    const Value& offset = attribute(state, "offset");
    if (offset.is_none()) return index_key(number, nullptr);
    const Shape offsets = pickle::shape_of(offset);
    std::string key = index_key(number, &offsets);
    memory_.charge(key.size());
    return key;
  }

  template <typename Item>
  Value add(std::deque<Item>& list, Item item) {
    memory_.charge(chunk_bytes);
    list.push_back(std::move(item));
    return Value(static_cast<int64_t>(list.size() - 1));
  }

  template <typename Item>
  static const Item& at(const std::deque<Item>& list, const Value& number, std::string_view what) {
    const bool is_number = number.is(Value::Kind::integer) && number.as_integer().fits;
    if (!is_number || number.as_int() < 0 || static_cast<uint64_t>(number.as_int()) >= list.size())
      fail(Errc::format, "{} is {}", what, a_kind(number));
    return list[static_cast<size_t>(number.as_int())];
  }

  [[nodiscard]] std::optional<Stored> find(const std::string& key) const {
    const auto found = place_of_index_.find(key);
    return found == place_of_index_.end() ? std::nullopt : std::optional(*found->second);
  }

  MemoryBudget& memory_;
  std::unordered_map<std::string, uint32_t, KeyedHash, std::equal_to<>> numbers_;  // of names
  std::vector<std::string_view> names_;
  std::unordered_map<std::string, std::shared_ptr<const std::string>, KeyedHash> paths_;
  // They may become long, so that they are not moved while they grow.
  std::deque<std::string> indexes_;
  std::deque<Chunk> chunks_;
  std::deque<Stored> places_;
  std::unordered_map<std::string_view, const Stored*, KeyedHash> place_of_index_;
};

void read_tensor(Entry& entry, const Value& described, const Pieces& pieces, MemoryBudget& memory) {
  entry.is_tensor = true;
  entry.dtype = dtype_of(attribute(described, "properties"));
  entry.shape = pickle::shape_of(attribute(described, "size"));
  checked_mul(static_cast<uint64_t>(numel_of(entry.shape)), size_of(entry.dtype), "a tensor");
  for (const Value& one : attribute(described, "chunks").as_sequence().items) {
    Chunk chunk = pieces.chunk(entry.name, one);
    memory.charge(chunk_bytes + (chunk.offsets.size() + chunk.sizes.size()) * sizeof(int64_t));
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
  Pieces pieces(memory);
  options.replace = [&](std::string_view type, const Value& state) { return pieces.replace(type, state); };
  const Value root = pickle::load(pickle, options);
  if (!is_of(root, "Metadata")) fail(Errc::format, "it holds {}, not the metadata of a folder", a_kind(root));
  pieces.put(table(root, "storage_data"));
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
        entry.place = pieces.value(name);
      } else {
        read_tensor(entry, described, pieces, memory);
      }
      out.entries.push_back(std::move(entry));
    });
  }
  return out;
}

}  // namespace cbk::dcp
