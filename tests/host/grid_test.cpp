// A matrix as blocks, and pictures.
#include "host/tensor/grid.hpp"

#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "host/base/bytes.hpp"
#include "host/base/error.hpp"
#include "host/base/png.hpp"

namespace cbk {
namespace {

Tensor matrix_of(const std::vector<double>& numbers, Shape shape) {
  Bytes bytes(numbers.size() * 8);
  for (size_t i = 0; i < numbers.size(); ++i) store_le(bytes.data() + i * 8, numbers[i]);
  return Tensor::from_bytes(DType::float64, std::move(shape), std::move(bytes));
}

TEST_CASE("blocks of a matrix", "[tensor]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Tensor matrix = matrix_of({1, 2, 3, 4, nan, 6, nan, 8, 9, -1, nan, infinity}, {3, 4});
  const Grid found = grid(matrix, 2, 2);
  REQUIRE(found.cells.size() == 4);
  CHECK(found.cells[0].mean == 1.5);  // rows [0, 1), columns [0, 2)
  CHECK(found.cells[0].rms == std::sqrt(2.5));
  CHECK(found.cells[2].nan == 1);
  CHECK(found.cells[2].min == -1);
  CHECK(found.cells[2].max == 9);
  CHECK(found.cells[3].nan == 2);
  CHECK(found.cells[3].inf == 1);
  CHECK(found.cells[3].mean == 8);
  const Grid whole = grid(matrix, 100, 100);
  CHECK(whole.rows == 3);
  CHECK(whole.columns == 4);
  CHECK(std::isnan(whole.cells[4].mean));
  CHECK(grid(matrix_of({}, {0, 4}), 2, 2).cells.empty());
  CHECK(grid(matrix_of({1e300, 1e300}, {1, 2}), 1, 1).cells[0].rms == Approx(1e300));
  CHECK_THROWS_AS(grid(matrix_of({1, 2}, {2}), 1, 1), Error);
}

TEST_CASE("a block that is read in pieces", "[tensor]") {
  const Tensor numbers = Tensor::normal(DType::float32, {70'001, 7}, 0, 1, 3);
  const Grid found = grid(numbers, 2, 3);
  CHECK(found.cells[0].mean == Approx(0).margin(0.02));
  CHECK(found.cells[5].rms == Approx(1).epsilon(0.02));
  const Grid one = grid(numbers.slice(0, 0, 35'000).slice(1, 2, 4), 1, 1);
  CHECK(found.cells[1].max == one.cells[0].max);
  CHECK(found.cells[1].rms == Approx(one.cells[0].rms));
}

TEST_CASE("a picture says its size and refuses a wrong one", "[base]") {
  const std::vector<Colour> palette = {{255, 0, 0}, {0, 0, 255}};
  const Bytes pixels(6, std::byte{1});
  const std::string file = png(3, 2, palette, pixels);
  CHECK(file.substr(1, 3) == "PNG");
  CHECK(file.substr(16, 8) == std::string("\0\0\0\3\0\0\0\2", 8));
  CHECK_THROWS_AS(png(3, 3, palette, pixels), Error);
  CHECK_THROWS_AS(png(3, 2, std::span(palette).first(1), pixels), Error);
}

}  // namespace
}  // namespace cbk
