// Finds rows by names that are made on demand and never kept.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

namespace cbk {

/// Open addressing over row numbers, fewer than 2^32 - 1. Not thread-safe.
class RowIndex {
 public:
  /// The first row that was added with this hash and for which `is_same(row)` holds.
  template <typename IsSame>
  [[nodiscard]] std::optional<uint32_t> find(size_t hash, IsSame&& is_same) const {
    if (slots_.empty()) return std::nullopt;
    const Slot& slot = slots_[position_of(static_cast<uint32_t>(hash), is_same)];
    if (slot.row_after == 0) return std::nullopt;
    return slot.row_after - 1;
  }

  /// The same; if there is none, `row` is added.
  template <typename IsSame>
  std::optional<uint32_t> find_or_add(size_t hash, uint32_t row, IsSame&& is_same) {
    if (4 * (count_ + 1) > 3 * slots_.size()) grow();
    Slot& slot = slots_[position_of(static_cast<uint32_t>(hash), is_same)];
    if (slot.row_after != 0) return slot.row_after - 1;
    slot = {row + 1, static_cast<uint32_t>(hash)};
    ++count_;
    return std::nullopt;
  }

 private:
  struct Slot {
    uint32_t row_after = 0;  // row + 1; 0: free
    uint32_t hash = 0;
  };

  template <typename IsSame>
  size_t position_of(uint32_t hash, IsSame&& is_same) const {
    const size_t mask = slots_.size() - 1;
    size_t position = hash & mask;
    while (slots_[position].row_after != 0) {
      const Slot& slot = slots_[position];
      if (slot.hash == hash && is_same(slot.row_after - 1)) break;
      position = (position + 1) & mask;
    }
    return position;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : 2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.row_after != 0) slots_[position_of(slot.hash, [](uint32_t) { return false; })] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace cbk
