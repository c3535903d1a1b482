#include "host/tensor/tiles.hpp"

#include <algorithm>
#include <span>

#include "host/base/error.hpp"

namespace cbk {
namespace {

constexpr int deepest = 64;  // cuts in turns of dimensions; a mesh of devices has a few

struct Box {
  Shape begin, end;
};

int64_t begin_of(const Tile& tile, size_t dim) {
  return tile.offsets[dim];
}

int64_t end_of(const Tile& tile, size_t dim) {
  return tile.offsets[dim] + tile.tensor.shape()[dim];
}

/// "rows 4 to 7" as "[4:8, 0:16]".
std::string text_of(const Box& box) {
  std::string out = "[";
  for (size_t i = 0; i < box.begin.size(); ++i)
    out += fmt::format("{}{}:{}", i == 0 ? "" : ", ", box.begin[i], box.end[i]);
  return out + "]";
}

void check_inside(const Tile& tile, const Shape& shape) {
  if (tile.offsets.size() != shape.size() || tile.tensor.shape().size() != shape.size())
    fail(Errc::format, "a piece of {} dimensions of a tensor of {}", tile.tensor.dim(), shape.size());
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t extent = tile.tensor.shape()[i];
    if (tile.offsets[i] < 0 || tile.offsets[i] > shape[i] || extent > shape[i] - tile.offsets[i])
      fail(Errc::format, "a piece of size {} at {} reaches beyond the size {}",
           to_string(tile.tensor.shape()), to_string(tile.offsets), to_string(shape));
  }
}

[[noreturn]] void fail_hole(Box box, size_t dim, int64_t begin, int64_t end) {
  box.begin[dim] = begin;
  box.end[dim] = end;
  fail(Errc::format, "no piece has the elements {}", text_of(box));
}

/// The tiles sorted along `dim`, and where a cut parts them: each band is [cuts[i], cuts[i + 1]).
std::vector<size_t> cuts_along(std::span<Tile> tiles, const Box& box, size_t dim) {
  std::ranges::sort(tiles, {}, [&](const Tile& tile) { return begin_of(tile, dim); });
  std::vector<size_t> cuts{0};
  int64_t end = box.begin[dim];
  for (size_t i = 0; i < tiles.size(); ++i) {
    const int64_t begin = begin_of(tiles[i], dim);
    if (begin > end) fail_hole(box, dim, end, begin);
    if (begin == end && i > 0) cuts.push_back(i);
    end = std::max(end, end_of(tiles[i], dim));
  }
  if (end < box.end[dim]) fail_hole(box, dim, end, box.end[dim]);
  cuts.push_back(tiles.size());
  return cuts;
}

int64_t volume_of(std::span<const Tile> tiles) {
  int64_t sum = 0;
  for (const Tile& tile : tiles) sum += tile.tensor.numel();
  return sum;
}

Tensor join(std::span<Tile> tiles, const Box& box, int depth) {
  if (tiles.size() == 1) {
    for (size_t dim = 0; dim < box.begin.size(); ++dim) (void)cuts_along(tiles, box, dim);
    return tiles[0].tensor;
  }
  for (size_t dim = 0; dim < box.begin.size(); ++dim) {
    const std::vector<size_t> cuts = cuts_along(tiles, box, dim);
    if (cuts.size() == 2) continue;
    if (depth == deepest) break;
    std::vector<Tensor> bands;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::span<Tile> band = tiles.subspan(cuts[i], cuts[i + 1] - cuts[i]);
      Box inner = box;
      inner.begin[dim] = begin_of(band.front(), dim);
      inner.end[dim] = 0;
      for (const Tile& tile : band) inner.end[dim] = std::max(inner.end[dim], end_of(tile, dim));
      bands.push_back(join(band, inner, depth + 1));
    }
    return Tensor::concat(bands, static_cast<int64_t>(dim));
  }
  int64_t volume = 1;
  for (size_t dim = 0; dim < box.begin.size(); ++dim) volume *= box.end[dim] - box.begin[dim];
  if (volume_of(tiles) != volume) fail(Errc::format, "pieces overlap within {}", text_of(box));
  fail(Errc::format, "the pieces of {} overlap, or no straight cut parts them", text_of(box));
}

}  // namespace

Tensor joined_tiles(DType dtype, const Shape& shape, std::vector<Tile> tiles) {
  for (const Tile& tile : tiles) check_inside(tile, shape);
  std::erase_if(tiles, [](const Tile& tile) { return tile.tensor.numel() == 0; });
  if (numel_of(shape) == 0) return Tensor::from_bytes(dtype, shape, {});
  if (tiles.empty()) fail(Errc::format, "no piece has any of its elements");
  return join(tiles, {Shape(shape.size(), 0), shape}, 0);
}

}  // namespace cbk
