#include "host/formats/ranks/pieces.hpp"

#include <algorithm>
#include <unordered_map>

#include "host/base/hash.hpp"
#include "host/formats/pickle/torch_tensors.hpp"
#include "host/tensor/tiles.hpp"
#include "host/value/attribute.hpp"
#include "host/value/json.hpp"

namespace cbk::ranks {
namespace {

constexpr std::string_view places = "DCP_SHARDING_INFO";
constexpr uint64_t piece_bytes = 512;  // of memory, about

struct Whole {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;
  std::vector<Tile> tiles;
};

/// The entry of the metadata: name → saved_offsets.
Value places_in(const Checkpoint& file) {
  return within(places, [&] { return parse_json(attribute(file.metadata, places).as_string()); });
}

void add(Whole& whole, const Value& place, const Tensor& tensor) {
  Tile tile{pickle::shape_of(attribute(place, "saved_offsets")), tensor};
  const Shape& sizes = tensor.shape();
  if (tile.offsets.size() != sizes.size())
    fail(Errc::format, "a piece of {} dims begins at {}", sizes.size(), to_string(tile.offsets));
  if (whole.tiles.empty()) {
    whole.dtype = tensor.dtype();
    whole.shape.assign(sizes.size(), 0);
  }
  if (tensor.dtype() != whole.dtype || sizes.size() != whole.shape.size())
    fail(Errc::format, "its pieces are {} {} and {} in {} dims", name_of(tensor.dtype()), to_string(sizes),
         name_of(whole.dtype), whole.shape.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (tile.offsets[i] > std::numeric_limits<int64_t>::max() - sizes[i])
      fail(Errc::format, "a piece begins at {}", to_string(tile.offsets));
    whole.shape[i] = std::max(whole.shape[i], tile.offsets[i] + sizes[i]);
  }
  whole.tiles.push_back(std::move(tile));
}

}  // namespace

bool has_pieces(const Checkpoint& file) {
  const Value* found = file.metadata.find(places);
  return found != nullptr && found->is(Value::Kind::string);
}

Value join_pieces(std::span<const Checkpoint> files, MemoryBudget& memory) {
  std::vector<Whole> wholes;
  std::unordered_map<std::string, size_t, KeyedHash> known;
  for (const Checkpoint& file : files) {
    within(quote(file.path.filename().string()), [&] {
      const Value by_name = places_in(file);
      for (const auto& [key, value] : file.root.as_dict().entries()) {
        const std::string& name = key.as_string();
        within(quote(name), [&, &value = value] {
          memory.charge(piece_bytes + name.size());
          const auto [at, is_new] = known.emplace(name, wholes.size());
          if (is_new) wholes.push_back({.name = name, .shape = {}, .tiles = {}});
          add(wholes[at->second], attribute(by_name, name), value.as_tensor());
        });
      }
    });
  }
  Value root = Value::dict();
  for (Whole& whole : wholes) {
    within(quote(whole.name), [&] {
      checked_mul(static_cast<uint64_t>(numel_of(whole.shape)), size_of(whole.dtype), "a tensor");
      root.as_dict().set(whole.name, joined_tiles(whole.dtype, whole.shape, std::move(whole.tiles)));
    });
  }
  return root;
}

}  // namespace cbk::ranks
