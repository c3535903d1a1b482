// Plans the storages of an output, and the place of each tensor in them.
//
// Views of one source storage stay views of one storage. A storage is written whole if at least half of it is
// used; otherwise only the used ranges are written, one after the other, still as one storage. A range that a
// single tensor reads with gaps (a column) is written densely. Tensors that are computed get separate
// storages.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "host/formats/pickle/pickler.hpp"
#include "host/value/row_index.hpp"

namespace cbk::torch {

class StoragePlan {
 public:
  /// A run of elements of a storage: a part of the source, or one tensor's elements.
  struct Segment {
    Tensor tensor;  // one-dimensional, or the tensor to be written dense
    std::string key;
  };
  /// Segments from that of the storage before up to `end_segment`.
  struct PlannedStorage {
    uint64_t bytes = 0;
    uint32_t end_segment = 0;
    std::optional<uint32_t> crc32;  // known from the source
  };

  /// First pass: every tensor, in the order of the pickle.
  void add(const Tensor& tensor, const std::string& storage_class);
  /// Between the passes.
  void arrange();
  /// Second pass: the same tensors in the same order.
  pickle::StoredTensor next(const Tensor& tensor, const std::string& storage_class, const std::string& path);

  // After both passes.
  [[nodiscard]] const std::vector<PlannedStorage>& storages() const { return storages_; }
  [[nodiscard]] size_t segment_count() const { return segments_.size(); }
  /// The next segment of all storages.
  Segment take_segment();

 private:
  static constexpr uint32_t none = UINT32_MAX;
  // There may be 100,000 tensors.
  /// One tensor.
  struct Use {
    Tensor tensor;            // until `arrange`
    uint32_t storage = 0;     // which is that of its group
    uint32_t next = none;     // of the same group
    uint32_t segment = none;  // the one that is called like it
    bool is_dense = false;    // its own strides are not kept
    int64_t offset = 0;       // in the storage
  };
  /// Tensors over one source: a storage, or an expression.
  struct Group {
    uint32_t storage_class = 0;
    uint32_t first = 0;  // use
    uint32_t last = 0;
  };
  /// Overlapping ranges of a source.
  struct Cluster {
    int64_t begin = 0;  // in elements of the tensors' dtype
    int64_t end = 0;
    std::vector<uint32_t> uses;
    bool is_dense = false;  // one tensor with gaps: its elements are written, not the range
    [[nodiscard]] int64_t cost(const std::deque<Use>& uses_of_plan) const;
  };

  void arrange_group(const Group& group);
  [[nodiscard]] std::vector<uint32_t> uses_of(const Group& group) const;
  [[nodiscard]] std::vector<Cluster> clusters_of(const std::vector<uint32_t>& uses) const;
  void write_whole(const std::vector<uint32_t>& uses, PlannedStorage& storage);
  void write_clusters(const std::vector<Cluster>& clusters, PlannedStorage& storage);
  void add_segment(Tensor tensor, uint32_t first_use);

  // Deques, which do not move their elements when they grow.
  std::deque<Use> uses_;
  std::deque<Group> groups_;                         // until `arrange`
  RowIndex by_source_;                               // of the groups, until `arrange`
  std::map<std::string, uint32_t> storage_classes_;  // by number
  std::vector<PlannedStorage> storages_;
  std::deque<Segment> segments_;
  size_t next_ = 0;  // use, in the second pass
};

}  // namespace cbk::torch
