// Which storages an output gets, and where in them each tensor lies.
//
// Views of one source storage stay views of one storage. A storage is written whole when at least half of it
// is referred to; otherwise only the referenced ranges are, one after the other, still as one storage. A
// range that a single tensor sees through gaps (a column) is written dense. Tensors that are computed get a
// storage of their own.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "host/formats/torch/pickler.hpp"

namespace cbk::torch {

class StoragePlan {
 public:
  /// A run of elements of a storage: a part of the source, or one tensor's elements.
  struct Segment {
    Tensor tensor;  // one-dimensional, or the tensor to be written dense
    std::string key;
  };
  struct PlannedStorage {
    uint64_t bytes = 0;
    std::vector<Segment> segments;
    std::optional<uint32_t> crc32;  // known from the source
  };

  /// First pass: every tensor, in the order of the pickle.
  void add(const Tensor& tensor, const std::string& storage_class, const std::string& path);
  /// Between the passes.
  void arrange();
  /// Second pass: the same tensors in the same order.
  StoredTensor next();

  /// After `arrange`: they are handed over.
  [[nodiscard]] std::vector<PlannedStorage> take_storages() { return std::move(storages_); }

 private:
  /// One tensor of a group, in elements of its dtype.
  struct Use {
    Tensor tensor;
    std::string path;
    int64_t begin = 0;  // of the range it touches
    int64_t end = 0;
  };
  /// Tensors over one source: a storage, or an expression.
  struct Group {
    std::string storage_class;
    StoragePtr source;  // nullptr: computed
    std::vector<uint32_t> uses;
  };
  /// Overlapping ranges of a source.
  struct Cluster {
    int64_t begin = 0;
    int64_t end = 0;
    std::vector<uint32_t> uses;
    bool is_dense = false;  // one tensor with gaps: its elements are written, not the range
    [[nodiscard]] int64_t cost(const std::deque<Use>& uses_of_plan) const;
  };

  void arrange_group(const Group& group, size_t key);
  [[nodiscard]] std::vector<Cluster> clusters_of(const Group& group) const;
  void write_whole(const Group& group, PlannedStorage& storage);
  void write_clusters(const Group& group, const std::vector<Cluster>& clusters, PlannedStorage& storage);

  using Source = std::pair<const void*, std::string>;
  // Deques, which do not move what they hold when they grow: there may be 100,000 tensors.
  std::deque<Use> uses_;                // until `arrange`
  std::deque<Group> groups_;            // until `arrange`
  std::map<Source, size_t> by_source_;  // until `arrange`
  std::deque<StoredTensor> stored_;     // one per tensor; what `next` gave is gone
  std::vector<PlannedStorage> storages_;
};

}  // namespace cbk::torch
