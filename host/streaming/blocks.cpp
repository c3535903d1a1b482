#include "host/streaming/blocks.hpp"

#include <algorithm>
#include <map>

#include "host/tensor/expression.hpp"

namespace cbk {
namespace {

/// The place of an item's first bytes; items without a file come first.
Storage::Place place_of(const Expression& expression) {
  if (const auto* source = dynamic_cast<const ViewExpression*>(&expression)) {
    Storage::Place place = source->view().storage->place();
    place.offset += static_cast<uint64_t>(source->view().offset) * source->itemsize();
    return place;
  }
  Storage::Place first;
  expression.each_input([&](const Expression& input) {
    if (first.file.empty()) first = place_of(input);
  });
  return first;
}

}  // namespace

int64_t block_elements(const Tensor& tensor, uint64_t bytes) {
  const auto fit = std::max<int64_t>(1, static_cast<int64_t>(bytes / size_of(tensor.dtype())));
  const int64_t grain = tensor.expression()->granularity();
  if (grain <= fit) return fit / grain * grain;
  return grain <= 2 * fit ? grain : fit;
}

std::vector<size_t> reading_order(const std::vector<Item>& items) {
  struct Position {
    size_t file;
    uint64_t offset;
    size_t item;
  };
  std::map<std::string, size_t> files;
  files.emplace("", 0);
  std::vector<Position> positions;
  for (size_t i = 0; i < items.size(); ++i) {
    const Storage::Place place =
        within(items[i].key, [&] { return place_of(*items[i].tensor.expression()); });
    positions.push_back({files.emplace(place.file, files.size()).first->second, place.offset, i});
  }
  std::stable_sort(positions.begin(), positions.end(), [](const Position& a, const Position& b) {
    return std::pair(a.file, a.offset) < std::pair(b.file, b.offset);
  });
  std::vector<size_t> order;
  order.reserve(positions.size());
  for (const Position& position : positions) order.push_back(position.item);
  return order;
}

uint64_t cost_of(const Item& item) {
  return item.tensor.nbytes() + item.tensor.cost().bytes_read;
}

BlockWalk::BlockWalk(const std::vector<Item>& items, const std::vector<size_t>& order, uint64_t block_bytes,
                     Share share)
    : items_(items), order_(order), block_bytes_(block_bytes), share_(share) {
  if (share.parts == 1) return;
  costs_.reserve(items.size());
  for (const Item& item : items) costs_.push_back(cost_of(item));
  before_.reserve(order.size());
  for (const size_t item : order) {
    before_.push_back(total_);
    total_ += costs_[item];
  }
}

bool BlockWalk::step(Block& block) {
  for (; position_ < order_.size(); ++position_, cursor_ = 0) {
    const size_t item = order_[position_];
    const Tensor& tensor = items_[item].tensor;
    if (cursor_ >= tensor.numel()) continue;
    if (const auto& pieces = items_[item].pieces) {
      const int64_t row_end = (cursor_ / pieces->row + 1) * pieces->row;
      block = {item, cursor_, std::min(row_end, cursor_ + pieces->elements), turns_++};
    } else {
      if (cursor_ == 0) step_ = block_elements(tensor, block_bytes_);
      block = {item, cursor_, std::min(tensor.numel(), cursor_ + step_)};
    }
    cursor_ = block.end;
    return true;
  }
  return false;
}

/// The part in which the middle of the block lies. After `step`.
int BlockWalk::part_of(const Block& block) const {
  if (share_.parts == 1) return 0;
  const auto numel = static_cast<double>(items_[block.item].tensor.numel());
  const double middle = (static_cast<double>(block.begin) + static_cast<double>(block.end)) / 2;
  const double cost = static_cast<double>(costs_[block.item]) * (middle / numel);
  const double at = (static_cast<double>(before_[position_]) + cost) / static_cast<double>(total_);
  return std::clamp(static_cast<int>(at * share_.parts), 0, share_.parts - 1);
}

bool BlockWalk::next(Block& block) {
  while (step(block)) {
    const int part = part_of(block);
    if (part == share_.part) return true;
    if (part > share_.part) return false;
  }
  return false;
}

}  // namespace cbk
