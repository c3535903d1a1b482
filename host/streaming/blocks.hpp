// The blocks of a plan: ranges of its items, in the order in which their sources are read. Several processes
// take parts of them, cut by cost, so that each reads few files.
#pragma once

#include <cstdint>
#include <vector>

#include "host/formats/writer.hpp"

namespace cbk {

/// Elements [begin, end) of an item.
struct Block {
  size_t item = 0;
  int64_t begin = 0;
  int64_t end = 0;
  uint64_t turn = 0;  // of the pieces that go to sinks
};

/// One of `parts` parts of about the same cost, counted from 0.
struct Share {
  int part = 0;
  int parts = 1;
};

/// Items in the order of their sources, files in the order in which they first appear.
std::vector<size_t> reading_order(const std::vector<Item>& items);

/// The elements of a block of about `bytes`: as many as fit, cut at the expression's granularity.
int64_t block_elements(const Tensor& tensor, uint64_t bytes);

/// Bytes that are read and written.
uint64_t cost_of(const Item& item);

/// Gives out the blocks of a share, in their order. Blocks do not depend on the share. Not thread-safe.
class BlockWalk {
 public:
  /// `order`: as of `reading_order`. `block_bytes`: about the size of a block. Both outlive it.
  BlockWalk(const std::vector<Item>& items, const std::vector<size_t>& order, uint64_t block_bytes,
            Share share);

  /// False at the end.
  bool next(Block& block);
  /// Calls `visit` for all blocks of all shares, with the part that has it.
  template <typename Visit>
  static void each(const std::vector<Item>& items, const std::vector<size_t>& order, uint64_t block_bytes,
                   int parts, Visit&& visit) {
    BlockWalk walk(items, order, block_bytes, {0, parts});
    for (Block block; walk.step(block);) visit(block, walk.part_of(block));
  }

 private:
  bool step(Block& block);
  [[nodiscard]] int part_of(const Block& block) const;

  const std::vector<Item>& items_;
  const std::vector<size_t>& order_;
  uint64_t block_bytes_;
  Share share_;
  std::vector<uint64_t> costs_;  // of the items, and before each in the order, if there are several parts
  std::vector<uint64_t> before_;
  uint64_t total_ = 0;
  size_t position_ = 0;  // in order_
  int64_t cursor_ = 0;   // next element of that item
  int64_t step_ = 1;
  uint64_t turns_ = 0;
};

}  // namespace cbk
