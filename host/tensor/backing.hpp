// How much of the data that tensors show is in a file, and how much is only repeated, never written, or
// unpacked from very few bytes.
#pragma once

#include <unordered_map>
#include <vector>

#include "host/base/memory_budget.hpp"
#include "host/tensor/packed_storage.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk {

/// The bytes of its storage that a view can show at most: repetition by strides counts once.
uint64_t covered_bytes(const View& view);

/// Measures the storages of views against the files that they are in. Not thread-safe.
class Backing {
 public:
  /// `memory` is charged while this lives.
  explicit Backing(MemoryBudget& memory) : memory_(memory) {}
  /// The view and its storage must outlive this.
  void add(const View& view);

  struct Excess {
    const Storage* storage = nullptr;
    uint64_t bytes = 0;
  };
  /// The storages with views that show more than the files contain, the least first. Equal views count once,
  /// as they are read once. A byte of a file counts for one storage, and for at most `best_ratio` bytes of
  /// it.
  [[nodiscard]] std::vector<Excess> excess();

  /// More than deflate can pack into a byte.
  static constexpr uint64_t best_ratio = 1040;

 private:
  struct Use {
    const Storage* storage = nullptr;
    uint64_t shown = 0;
    uint64_t covered = 0;
    uint64_t held = 0;
  };
  [[nodiscard]] std::vector<Use> uses();

  MemoryLoan memory_;
  std::vector<const View*> views_;
};

}  // namespace cbk
