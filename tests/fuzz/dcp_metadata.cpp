// The metadata of a folder of torch.distributed.checkpoint: what is accepted has pieces that fill each
// tensor, or is an Error. An input that begins with 1 is a pickle; others are the numbers of a tensor's
// pieces.
#include "host/formats/dcp/metadata.hpp"
#include "host/tensor/tiles.hpp"
#include "tests/fuzz/memory_bar.hpp"

using namespace cbk;

namespace {

void join(DType dtype, const Shape& shape, std::vector<Tile> tiles) {
  const Tensor whole = joined_tiles(dtype, shape, std::move(tiles));
  if (whole.shape() != shape || whole.dtype() != dtype) std::abort();
  Bytes element(size_of(dtype));
  if (whole.numel() == 0) return;
  whole.read(0, element);
  whole.read(whole.numel() - 1, element);
}

void look_at(const dcp::Metadata& metadata) {
  for (const dcp::Entry& entry : metadata.entries) {
    std::vector<Tile> tiles;
    for (const dcp::Chunk& chunk : entry.chunks)
      tiles.push_back({chunk.offsets, Tensor::full(entry.dtype, chunk.sizes, 1)});
    if (entry.is_tensor) join(entry.dtype, entry.shape, std::move(tiles));
  }
}

/// Two dimensions: the extents of the tensor, then begin and extent of each piece in both.
void join_numbers(std::string_view numbers) {
  const auto at = [&](size_t i) { return static_cast<int64_t>(static_cast<int8_t>(numbers[i])); };
  if (numbers.size() < 2 || at(0) < 0 || at(1) < 0) return;
  std::vector<Tile> tiles;
  for (size_t i = 2; i + 4 <= numbers.size(); i += 4) {
    if (at(i + 2) < 0 || at(i + 3) < 0) return;
    tiles.push_back({{at(i), at(i + 1)}, Tensor::full(DType::float32, {at(i + 2), at(i + 3)}, 1)});
  }
  join(DType::float32, {at(0), at(1)}, std::move(tiles));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data + 1), size - 1);
  MemoryBudget budget(size);
  const MemoryBar bar(size);
  try {
    if (data[0] % 2 == 1) look_at(dcp::read_metadata(rest, budget));
    if (data[0] % 2 == 0) join_numbers(rest);
  } catch (const Error&) {
  }
  return 0;
}
