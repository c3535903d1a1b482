#include <catch2/catch.hpp>

#include <algorithm>
#include <random>

#include "host/base/error.hpp"
#include "host/tensor/tiles.hpp"

namespace cbk {
namespace {

Tensor counted(const Shape& shape) {
  Bytes bytes(static_cast<size_t>(numel_of(shape)) * 4);
  for (size_t i = 0; i < bytes.size() / 4; ++i) store_le(bytes.data() + 4 * i, static_cast<int32_t>(i));
  return Tensor::from_bytes(DType::int32, shape, std::move(bytes));
}

Tile tile_of(const Tensor& whole, const Shape& begin, const Shape& end) {
  Tensor part = whole;
  for (size_t i = 0; i < begin.size(); ++i) part = part.slice(static_cast<int64_t>(i), begin[i], end[i]);
  return {begin, part};
}

/// Cuts a box at random, in turns of its dimensions.
void cut(const Tensor& whole, const Shape& begin, const Shape& end, std::mt19937& random,
         std::vector<Tile>& out) {
  const size_t dim = random() % begin.size();
  const int64_t extent = end[dim] - begin[dim];
  if (extent < 2 || random() % 4 == 0) {
    out.push_back(tile_of(whole, begin, end));
    return;
  }
  const int64_t middle = begin[dim] + 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(extent - 1));
  Shape first_end = end, second_begin = begin;
  first_end[dim] = second_begin[dim] = middle;
  cut(whole, begin, first_end, random, out);
  cut(whole, second_begin, end, random, out);
}

std::string problem_of(const Shape& shape, std::vector<Tile> tiles) {
  try {
    (void)joined_tiles(DType::int32, shape, std::move(tiles));
  } catch (const Error& error) {
    CHECK(error.code() == Errc::format);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a tensor is joined from any straight cuts of it", "[tiles]") {
  std::mt19937 random(7);
  for (const Shape& shape : {Shape{17}, Shape{9, 14}, Shape{4, 5, 6}}) {
    const Tensor whole = counted(shape);
    for (int turn = 0; turn < 200; ++turn) {
      std::vector<Tile> tiles;
      cut(whole, Shape(shape.size(), 0), shape, random, tiles);
      std::ranges::shuffle(tiles, random);
      const Tensor joined = joined_tiles(DType::int32, shape, tiles);
      CHECK(joined.shape() == shape);
      CHECK(joined.to_bytes() == whole.to_bytes());
      if (tiles.size() < 2) continue;
      std::vector<Tile> fewer(tiles.begin() + 1, tiles.end());
      CHECK_FALSE(problem_of(shape, fewer).empty());
      tiles.push_back(tiles.front());
      CHECK_FALSE(problem_of(shape, tiles).empty());
    }
  }
}

TEST_CASE("what no tiles fill is named", "[tiles]") {
  const Tensor whole = counted({4, 6});
  CHECK(problem_of({4, 6}, {}) == "no piece has any of its elements");
  CHECK(problem_of({4, 6}, {tile_of(whole, {0, 0}, {4, 4})}) == "no piece has the elements [0:4, 4:6]");
  CHECK(problem_of({4, 6}, {{{0, 0}, whole}, {{1, 1}, counted({2, 2})}}).find("overlap") !=
        std::string::npos);
  CHECK(problem_of({4, 6}, {{{2, 0}, whole}}).find("reaches beyond") != std::string::npos);
  CHECK(problem_of({4, 6}, {{{-1, 0}, whole}}).find("reaches beyond") != std::string::npos);
  CHECK(problem_of({4, 6}, {{{0}, counted({4})}}).find("1 dimensions of a tensor of 2") != std::string::npos);
  // A pinwheel: five tiles that no straight cut parts.
  CHECK_FALSE(
      problem_of({3, 3}, {tile_of(counted({3, 3}), {0, 0}, {1, 2}), tile_of(counted({3, 3}), {0, 2}, {2, 3}),
                          tile_of(counted({3, 3}), {2, 1}, {3, 3}), tile_of(counted({3, 3}), {1, 0}, {3, 1}),
                          tile_of(counted({3, 3}), {1, 1}, {2, 2})})
          .empty());
  CHECK(joined_tiles(DType::int32, {0, 6}, {}).numel() == 0);
  CHECK(joined_tiles(DType::int32, {}, {{{}, counted({})}}).to_bytes() == counted({}).to_bytes());
}

}  // namespace cbk
