#include <catch2/catch.hpp>

#include <map>

#include "host/streaming/blocks.hpp"

namespace cbk {
namespace {

/// A decoder of LLaMA's kind, in bfloat16.
struct Decoder {
  int64_t layers, hidden, inner, groups, vocabulary;
};

constexpr int64_t head_width = 128;

/// Lazy tensors without memory: every second matrix is transposed, as many conversions do.
std::vector<Item> items_of(const Decoder& of) {
  std::vector<Item> items;
  const auto add = [&](const std::string& name, const Shape& shape) {
    items.push_back({name, Tensor::full(DType::bfloat16, shape, 0)});
    if (shape.size() == 2 && items.size() % 2 == 0) items.back().tensor = items.back().tensor.transpose(0, 1);
  };
  add("embed", {of.vocabulary, of.hidden});
  for (int64_t layer = 0; layer < of.layers; ++layer) {
    const std::string name = std::to_string(layer) + ".";
    for (const char* projection : {"q", "o"}) add(name + projection, {of.hidden, of.hidden});
    for (const char* projection : {"k", "v"}) add(name + projection, {of.groups * head_width, of.hidden});
    for (const char* projection : {"gate", "up"}) add(name + projection, {of.inner, of.hidden});
    add(name + "down", {of.hidden, of.inner});
    for (const char* norm : {"norm1", "norm2"}) add(name + norm, {of.hidden});
  }
  add("norm", {of.hidden});
  add("head", {of.vocabulary, of.hidden});
  return items;
}

}  // namespace

TEST_CASE("the shares of large models are balanced within 5 % for up to 1,024 ranks", "[blocks]") {
  constexpr uint64_t block_bytes = 4ULL << 20;
  const std::map<std::string, Decoder> models = {{"70B", {80, 8192, 28672, 8, 128256}},
                                                 {"405B", {126, 16384, 53248, 8, 128256}},
                                                 {"1T", {160, 24576, 65536, 16, 128256}}};
  for (const auto& [name, decoder] : models) {
    const std::vector<Item> items = items_of(decoder);
    const std::vector<size_t> order = reading_order(items);
    uint64_t whole = 0;
    for (const Item& item : items) whole += item.tensor.nbytes();
    for (const int parts : {1, 2, 3, 16, 100, 256, 1024}) {
      std::vector<uint64_t> bytes(static_cast<size_t>(parts));
      std::vector<size_t> tensors(static_cast<size_t>(parts));
      std::vector<size_t> last(static_cast<size_t>(parts), SIZE_MAX);
      BlockWalk::each(items, order, block_bytes, parts, [&](const Block& block, int part) {
        const auto at = static_cast<size_t>(part);
        bytes[at] += static_cast<uint64_t>(block.end - block.begin) * size_of(DType::bfloat16);
        if (std::exchange(last[at], block.item) != block.item) ++tensors[at];
      });
      INFO(name << " in " << parts << " parts");
      uint64_t sum = 0;
      for (const uint64_t share : bytes) {
        sum += share;
        CHECK(static_cast<double>(share) * parts == Approx(static_cast<double>(whole)).epsilon(0.05));
      }
      CHECK(sum == whole);
      // A tensor that is cut is in two or more parts; all others are in one.
      size_t opened = 0;
      for (const size_t count : tensors) opened += count;
      CHECK(opened <= items.size() + static_cast<size_t>(parts));
    }
  }
}

TEST_CASE("each share walks its own blocks of all", "[blocks]") {
  const std::vector<Item> items = items_of({2, 1024, 4096, 8, 5000});
  const std::vector<size_t> order = reading_order(items);
  for (const int parts : {1, 2, 7}) {
    std::vector<std::vector<std::pair<size_t, int64_t>>> wanted(static_cast<size_t>(parts));
    BlockWalk::each(items, order, 1 << 20, parts, [&](const Block& block, int part) {
      wanted[static_cast<size_t>(part)].emplace_back(block.item, block.begin);
    });
    for (int part = 0; part < parts; ++part) {
      BlockWalk walk(items, order, 1 << 20, {part, parts});
      std::vector<std::pair<size_t, int64_t>> found;
      for (Block block; walk.next(block);) found.emplace_back(block.item, block.begin);
      CHECK(found == wanted[static_cast<size_t>(part)]);
    }
  }
}

}  // namespace cbk
