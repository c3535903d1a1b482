#include "host/formats/ranks/dtensor.hpp"

#include <algorithm>
#include <set>

#include "host/formats/pickle/torch_tensors.hpp"
#include "host/tensor/tiles.hpp"
#include "host/value/attribute.hpp"

namespace cbk::ranks {
namespace {

constexpr uint64_t largest_mesh = 1 << 16;  // devices

bool is_of(const Value& value, std::string_view name) {
  if (!value.is(Value::Kind::object)) return false;
  const std::string& type = value.as_object().type;
  return type.ends_with(name) && type.starts_with("torch.distributed.") &&
         type[type.size() - name.size() - 1] == '.';
}

bool is_dtensor(const Value& value) {
  return is_of(value, "DTensor");
}

bool is_part(const Value& value) {
  if (is_of(value, "ShardedTensor"))
    fail(Errc::unsupported,
         "a ShardedTensor of torch.distributed._shard is not joined; save DTensors, or a "
         "folder of torch.distributed.checkpoint");
  return value.is(Value::Kind::tensor) || is_dtensor(value);
}

/// The ranks of the devices, in C order of the mesh.
struct Mesh {
  Shape shape;
  std::vector<int64_t> ranks;

  explicit Mesh(const Value& value) {
    const Tensor& tensor = attribute(value, "mesh").as_tensor();
    if (tensor.nbytes() > largest_mesh * sizeof(int64_t))
      fail(Errc::format, "a mesh of {} devices", tensor.numel());
    shape = tensor.shape();
    ranks.resize(static_cast<size_t>(tensor.numel()));
    tensor.cast(DType::int64).read(0, std::as_writable_bytes(std::span(ranks)));
  }
  /// The coordinates of a rank; none: it is not in the mesh.
  [[nodiscard]] std::optional<Shape> place_of(int64_t rank) const {
    const auto found = std::ranges::find(ranks, rank);
    if (found == ranks.end()) return std::nullopt;
    Shape place(shape.size());
    int64_t rest = found - ranks.begin();
    for (size_t i = shape.size(); i-- > 0;) {
      place[i] = rest % shape[i];
      rest /= shape[i];
    }
    return place;
  }
};

/// A cut of one dim of a tensor among the devices of one dim of the mesh.
struct Cut {
  size_t dim = 0;
  int64_t count = 0;
  int64_t place = 0;
  int64_t split_factor = 0;  // of a strided cut, which comes after those of later dims of the mesh
};

std::optional<Cut> cut_of(const Value& placement, const Mesh& mesh, size_t mesh_dim, const Shape& place,
                          size_t dims) {
  if (is_of(placement, "Replicate")) return std::nullopt;
  const bool is_strided = is_of(placement, "_StridedShard");
  if (!is_strided && !is_of(placement, "Shard")) {
    fail(Errc::unsupported, "{} of its parts cannot be joined: each rank may have a part of the sum",
         placement.is(Value::Kind::object) ? quote(placement.as_object().type) : a_kind(placement));
  }
  const Value& state = insides(placement);
  const Value* argument = state.is(Value::Kind::dict) ? state.as_dict().find(Value(0)) : nullptr;
  int64_t dim = (argument != nullptr ? *argument : attribute(placement, "dim")).as_int();
  if (dim < 0) dim += static_cast<int64_t>(dims);
  if (dim < 0 || dim >= static_cast<int64_t>(dims))
    fail(Errc::format, "it is cut along dim {} of {}", dim, dims);
  return Cut{static_cast<size_t>(dim), mesh.shape[mesh_dim], place[mesh_dim],
             is_strided ? attribute(placement, "split_factor").as_int() : 0};
}

struct Range {
  int64_t begin = 0;
  int64_t size = 0;
};

/// As torch.chunk cuts: pieces of ceil(size / count), the last ones shorter or empty.
Range part_of(const Range& whole, const Cut& cut) {
  const int64_t chunk = (whole.size + cut.count - 1) / cut.count;
  const int64_t skipped = std::min(whole.size, chunk * cut.place);
  return {whole.begin + skipped, std::min(chunk, whole.size - skipped)};
}

/// The box of a DTensor that a rank has; none: the rank is not in its mesh.
std::optional<Tile> tile_of(const Value& dtensor, int64_t rank, const Shape& shape) {
  const Value& spec = attribute(dtensor, "_spec");
  const Mesh mesh(attribute(spec, "mesh"));
  const std::optional<Shape> place = mesh.place_of(rank);
  if (!place) return std::nullopt;
  const auto& placements = attribute(spec, "placements").as_sequence().items;
  if (placements.size() != mesh.shape.size())
    fail(Errc::format, "{} placements on a mesh of {} dims", placements.size(), mesh.shape.size());
  std::vector<Cut> cuts;
  std::vector<Cut> strided;
  for (size_t i = 0; i < placements.size(); ++i) {
    const auto cut = cut_of(placements[i], mesh, i, *place, shape.size());
    if (cut) (cut->split_factor > 0 ? strided : cuts).push_back(*cut);
  }
  for (const Cut& late : strided) {
    int64_t before = 1;
    for (const Cut& cut : cuts) before *= cut.dim == late.dim ? cut.count : 1;
    if (before != late.split_factor)
      fail(Errc::unsupported, "a strided cut in {} after cuts in {}", late.split_factor, before);
    cuts.push_back(late);
  }
  std::vector<Range> box;
  box.reserve(shape.size());
  for (const int64_t extent : shape) box.push_back({0, extent});
  for (const Cut& cut : cuts) box[cut.dim] = part_of(box[cut.dim], cut);
  Tile tile{Shape(), attribute(dtensor, "_local_tensor").as_tensor()};
  Shape sizes;
  for (const Range& range : box) {
    tile.offsets.push_back(range.begin);
    sizes.push_back(range.size);
  }
  const bool is_empty = numel_of(sizes) == 0;
  if (is_empty ? tile.tensor.numel() != 0 : tile.tensor.shape() != sizes)
    fail(Errc::format, "its part is {}, and should be {}", to_string(tile.tensor.shape()), to_string(sizes));
  if (is_empty) tile.tensor = Tensor::full(tile.tensor.dtype(), sizes, 0);
  return tile;
}

Shape global_shape(const Value& dtensor) {
  const Value& meta = attribute(attribute(dtensor, "_spec"), "tensor_meta");
  if (meta.is(Value::Kind::sequence) && !meta.as_sequence().items.empty())
    return pickle::shape_of(meta.as_sequence().items.front());  // a named tuple
  return pickle::shape_of(attribute(meta, "shape"));
}

Value join(const std::vector<Part>& parts, const std::vector<const Value*>& of_ranks) {
  if (!is_dtensor(*of_ranks.front())) {
    for (size_t i = 0; i < of_ranks.size(); ++i)
      if (is_dtensor(*of_ranks[i]))
        fail(Errc::format, "it is whole in '{}', and a part in '{}'", parts[0].name, parts[i].name);
    check_alike(parts, of_ranks);
    const bool is_weight = is_floating(of_ranks.front()->as_tensor().dtype());  // random states are bytes
    if (is_weight && !are_same(parts, of_ranks))
      fail(Errc::unsupported,
           "its elements differ in the files of the ranks, and nothing says how they are joined");
    return *of_ranks.front();
  }
  const Shape shape = global_shape(*of_ranks.front());
  std::vector<Tile> tiles;
  std::set<Shape> places;
  for (size_t i = 0; i < of_ranks.size(); ++i) {
    within(fmt::format("'{}'", parts[i].name), [&] {
      if (!is_dtensor(*of_ranks[i])) fail(Errc::format, "it is no part of a tensor");
      if (global_shape(*of_ranks[i]) != shape)
        fail(Errc::format, "it is a part of a tensor of another shape");
      auto tile = tile_of(*of_ranks[i], parts[i].rank, shape);
      const bool is_new = tile && tile->tensor.numel() > 0 && places.insert(tile->offsets).second;
      if (is_new) tiles.push_back(std::move(*tile));  // others are replicas
    });
  }
  if (tiles.empty()) fail(Errc::format, "no rank has a part of it");
  const DType dtype = tiles.front().tensor.dtype();
  return joined_tiles(dtype, shape, std::move(tiles));
}

}  // namespace

Value join_dtensors(const std::vector<Part>& parts) {
  return merged(parts, is_part, [&](const std::string& /*path*/, const std::vector<const Value*>& of_ranks) {
    return join(parts, of_ranks);
  });
}

}  // namespace cbk::ranks
