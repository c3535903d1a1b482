#include "host/tensor/backing.hpp"

#include <algorithm>
#include <deque>
#include <string>
#include <tuple>

#include "host/base/interrupt.hpp"

namespace cbk {
namespace {

constexpr uint64_t view_bytes = 200;  // in memory, about

uint64_t saturating_add(uint64_t a, uint64_t b) {
  return a + b < a ? UINT64_MAX : a + b;
}

uint64_t shown_bytes(const View& view) {
  return static_cast<uint64_t>(numel_of(view.shape)) * size_of(view.dtype);
}

auto key_of(const View& view) {
  return std::tie(view.offset, view.dtype, view.shape, view.strides);
}

/// The part of a storage from a range of a file.
struct Range {
  size_t file = 0;
  uint64_t offset = 0;
  uint64_t stored = 0;
  uint64_t size = 0;
  size_t use = 0;
};

/// The ranges of all storages. Ranges without a place in their file count as consecutive.
class Ranges {
 public:
  explicit Ranges(MemoryLoan& memory) : memory_(memory) {}

  void add(const StoredPiece& piece, size_t use) {
    if (piece.stored == 0) return;
    memory_.grow(sizeof(Range));
    const size_t file = files_.emplace(piece.file, files_.size()).first->second;
    if (next_.size() <= file) next_.resize(file + 1, 0);
    if (piece.offset != StoredPiece::unknown) {
      ranges_.push_back({file, piece.offset, piece.stored, piece.size, use});
      return;
    }
    const uint64_t stored = std::min(piece.stored, size_of_file(piece.file) - next_[file]);
    if (stored > 0) unplaced_.push_back({file, next_[file], stored, piece.size, use});
    next_[file] += stored;
  }

  /// Calls `give(use, bytes)` with the bytes that each range adds to the earlier ones.
  template <typename Give>
  void each_fresh(Give&& give) {
    std::ranges::sort(ranges_, {}, [](const Range& range) { return std::pair(range.file, range.offset); });
    const Range* before = nullptr;
    uint64_t end = 0;  // of all ranges before, in this file
    for (const Range& range : ranges_) {
      if (before == nullptr || before->file != range.file) end = 0;
      const uint64_t first = std::max(range.offset, end);
      const uint64_t behind = saturating_add(range.offset, range.stored);
      if (behind > first) give(range.use, given(range, behind - first));
      end = std::max(end, behind);
      before = &range;
    }
    for (const Range& range : unplaced_) give(range.use, given(range, range.stored));
  }

 private:
  static uint64_t size_of_file(const std::string& path) {
    std::error_code ignored;
    const uint64_t size = fs::file_size(path, ignored);
    return ignored ? 0 : size;
  }

  static uint64_t given(const Range& range, uint64_t fresh) {
    const double share = static_cast<double>(fresh) / static_cast<double>(range.stored);
    const double bytes = std::min(share * static_cast<double>(range.size),
                                  static_cast<double>(Backing::best_ratio) * static_cast<double>(fresh));
    return fresh == range.stored && range.size <= Backing::best_ratio * fresh ? range.size
                                                                              : static_cast<uint64_t>(bytes);
  }

  MemoryLoan& memory_;
  std::unordered_map<std::string, size_t> files_;
  std::vector<uint64_t> next_;  // by file, of the ranges without a place
  std::deque<Range> ranges_;
  std::deque<Range> unplaced_;
};

}  // namespace

uint64_t covered_bytes(const View& view) {
  uint64_t elements = 1;
  uint64_t reach = 1;  // from the lowest element to the highest
  for (size_t i = 0; i < view.shape.size(); ++i) {
    const auto extent = static_cast<uint64_t>(view.shape[i]);
    if (extent == 0) return 0;
    if (view.strides[i] == 0) continue;
    elements *= extent;
    reach += (extent - 1) * static_cast<uint64_t>(std::abs(view.strides[i]));
  }
  return std::min(elements, reach) * size_of(view.dtype);
}

void Backing::add(const View& view) {
  memory_.grow(view_bytes);
  views_.push_back(&view);
}

std::vector<Backing::Use> Backing::uses() {
  std::vector<Use> uses;
  std::unordered_map<const Storage*, size_t> known;
  std::vector<std::pair<size_t, const View*>> views;
  for (const View* view : views_) {
    const auto [place, is_new] = known.emplace(view->storage.get(), uses.size());
    if (is_new) uses.push_back({view->storage.get()});
    views.emplace_back(place->second, view);
  }
  const auto is_before = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : key_of(*a.second) < key_of(*b.second);
  };
  const auto is_same = [](const auto& a, const auto& b) {
    return a.first == b.first && key_of(*a.second) == key_of(*b.second);
  };
  std::ranges::sort(views, is_before);
  views.erase(std::unique(views.begin(), views.end(), is_same), views.end());
  for (const auto& [use, view] : views) {
    uses[use].shown = saturating_add(uses[use].shown, shown_bytes(*view));
    uses[use].covered = saturating_add(uses[use].covered, covered_bytes(*view));
  }
  return uses;
}

std::vector<Backing::Excess> Backing::excess() {
  std::vector<Use> uses = this->uses();
  Ranges ranges(memory_);
  for (size_t i = 0; i < uses.size(); ++i) {
    check_interrupt();
    const Storage& storage = *uses[i].storage;
    if (storage.place().file.empty()) {
      uses[i].held = storage.size();  // in memory, and paid for
    } else {
      each_piece(storage, [&](const StoredPiece& piece) { ranges.add(piece, i); });
    }
  }
  ranges.each_fresh(
      [&](size_t use, uint64_t bytes) { uses[use].held = saturating_add(uses[use].held, bytes); });
  std::vector<Excess> out;
  for (const Use& use : uses) {
    const uint64_t held = std::min(use.covered, use.held);
    if (use.shown > held) out.push_back({use.storage, use.shown - held});
  }
  std::ranges::stable_sort(out, {}, &Excess::bytes);
  return out;
}

}  // namespace cbk
