#include "host/formats/torch/storage_plan.hpp"

#include <algorithm>

#include "host/base/hash.hpp"

namespace cbk::torch {
namespace {

/// The view, if torch can describe it: no negative strides.
const View* usable_view(const Tensor& tensor) {
  const View* view = tensor.view();
  if (view == nullptr) return nullptr;
  return std::ranges::all_of(view->strides, [](int64_t stride) { return stride >= 0; }) ? view : nullptr;
}

/// The source of a tensor: a storage, or an expression.
const void* source_of(const Tensor& tensor) {
  if (const View* view = usable_view(tensor)) return view->storage.get();
  return tensor.expression().get();
}

int64_t end_of(const View& view) {
  if (numel_of(view.shape) == 0) return view.offset;
  int64_t last = view.offset;
  for (size_t i = 0; i < view.shape.size(); ++i) last += (view.shape[i] - 1) * view.strides[i];
  return last + 1;
}

Tensor range_of(const StoragePtr& storage, DType dtype, int64_t begin, int64_t end) {
  return Tensor::from_view({storage, dtype, begin, {end - begin}, {1}});
}

size_t hash_of(const void* source) {
  return KeyedHash()({reinterpret_cast<const char*>(&source), sizeof source});
}

}  // namespace

int64_t StoragePlan::Cluster::cost(const std::deque<Use>& uses_of_plan) const {
  return is_dense ? uses_of_plan[uses.front()].tensor.numel() : end - begin;
}

void StoragePlan::add(const Tensor& tensor, const std::string& storage_class) {
  const auto own = static_cast<uint32_t>(uses_.size());
  const auto number = static_cast<uint32_t>(storage_classes_.size());
  const uint32_t class_number = storage_classes_.try_emplace(storage_class, number).first->second;
  const void* source = source_of(tensor);
  // Raw elements without a storage class of their own are distinguished by their dtype.
  const auto is_same = [&](uint32_t other) {
    const Tensor& first = uses_[groups_[other].first].tensor;
    return groups_[other].storage_class == class_number && first.dtype() == tensor.dtype() &&
           source_of(first) == source;
  };
  const auto own_group = static_cast<uint32_t>(groups_.size());
  const auto known = by_source_.find_or_add(hash_of(source), own_group, is_same);
  if (!known) groups_.push_back({class_number, own, own});
  Group& group = groups_[known.value_or(own_group)];
  uses_.push_back({tensor, known.value_or(own_group)});
  if (known) group.last = uses_[group.last].next = own;
}

void StoragePlan::arrange() {
  by_source_ = {};
  storages_.reserve(groups_.size());
  for (; !groups_.empty(); groups_.pop_front()) arrange_group(groups_.front());
  for (Use& use : uses_) use.tensor = {};
}

pickle::StoredTensor StoragePlan::next(const Tensor& tensor, const std::string& storage_class,
                                       const std::string& path) {
  const Use& use = uses_[next_++];
  if (use.segment != none) segments_[use.segment].key = path;
  const bool is_untyped = storage_class == "UntypedStorage";
  const uint64_t bytes = storages_[use.storage].bytes;
  return {storage_class, std::to_string(use.storage),
          static_cast<int64_t>(bytes / (is_untyped ? 1 : size_of(tensor.dtype()))), use.offset,
          use.is_dense ? contiguous_strides(tensor.shape()) : tensor.view()->strides};
}

StoragePlan::Segment StoragePlan::take_segment() {
  Segment segment = std::move(segments_.front());
  segments_.pop_front();
  return segment;
}

std::vector<uint32_t> StoragePlan::uses_of(const Group& group) const {
  std::vector<uint32_t> uses;
  for (uint32_t use = group.first; use != none; use = uses_[use].next) uses.push_back(use);
  return uses;
}

std::vector<StoragePlan::Cluster> StoragePlan::clusters_of(const std::vector<uint32_t>& uses) const {
  const auto view_of = [this](uint32_t use) -> const View& { return *uses_[use].tensor.view(); };
  std::vector<uint32_t> order = uses;
  std::ranges::stable_sort(order, {}, [&](uint32_t use) { return view_of(use).offset; });
  std::vector<Cluster> clusters;
  for (const uint32_t use : order) {
    const int64_t begin = view_of(use).offset;
    if (clusters.empty() || begin >= clusters.back().end) clusters.push_back({begin, 0, {}, false});
    clusters.back().end = std::max(clusters.back().end, end_of(view_of(use)));
    clusters.back().uses.push_back(use);
  }
  for (Cluster& cluster : clusters) {
    const Tensor& first = uses_[cluster.uses.front()].tensor;
    const bool is_one =
        std::ranges::all_of(cluster.uses, [&](uint32_t use) { return uses_[use].tensor.same_data(first); });
    cluster.is_dense = is_one && first.numel() <= (cluster.end - cluster.begin) / 2;
  }
  return clusters;
}

void StoragePlan::arrange_group(const Group& group) {
  PlannedStorage& storage = storages_.emplace_back();
  const std::vector<uint32_t> uses = uses_of(group);
  const Tensor& first = uses_[group.first].tensor;
  const View* view = usable_view(first);
  if (view == nullptr) {
    storage.bytes = first.nbytes();
    for (const uint32_t use : uses) uses_[use].is_dense = true;
    add_segment(first, group.first);
  } else {
    const std::vector<Cluster> clusters = clusters_of(uses);
    int64_t used = 0;
    for (const Cluster& cluster : clusters) used += cluster.cost(uses_);
    if (static_cast<uint64_t>(used) * size_of(first.dtype()) >= view->storage->size() / 2) {
      write_whole(uses, storage);
    } else {
      write_clusters(clusters, storage);
    }
  }
  storage.end_segment = static_cast<uint32_t>(segments_.size());
}

void StoragePlan::write_whole(const std::vector<uint32_t>& uses, PlannedStorage& storage) {
  const Tensor& first = uses_[uses.front()].tensor;
  const View& view = *first.view();
  const auto elements = static_cast<int64_t>(view.storage->size() / size_of(first.dtype()));
  storage.bytes = static_cast<uint64_t>(elements) * size_of(first.dtype());
  const bool is_first_whole = first.nbytes() == storage.bytes && view.offset == 0 &&
                              view.strides == contiguous_strides(first.shape());
  add_segment(is_first_whole ? first : range_of(view.storage, first.dtype(), 0, elements), uses.front());
  if (storage.bytes == view.storage->size()) storage.crc32 = view.storage->crc32();
  for (const uint32_t use : uses) uses_[use].offset = uses_[use].tensor.view()->offset;
}

void StoragePlan::write_clusters(const std::vector<Cluster>& clusters, PlannedStorage& storage) {
  int64_t base = 0;
  for (const Cluster& cluster : clusters) {
    const Tensor& first = uses_[cluster.uses.front()].tensor;
    const StoragePtr& source = first.view()->storage;
    add_segment(cluster.is_dense ? first : range_of(source, first.dtype(), cluster.begin, cluster.end),
                cluster.uses.front());
    for (const uint32_t number : cluster.uses) {
      Use& use = uses_[number];
      use.is_dense = cluster.is_dense;
      use.offset = base + (cluster.is_dense ? 0 : use.tensor.view()->offset - cluster.begin);
    }
    base += cluster.cost(uses_);
    storage.bytes = static_cast<uint64_t>(base) * size_of(first.dtype());
  }
}

void StoragePlan::add_segment(Tensor tensor, uint32_t first_use) {
  uses_[first_use].segment = static_cast<uint32_t>(segments_.size());
  segments_.push_back({std::move(tensor), {}});
}

}  // namespace cbk::torch
