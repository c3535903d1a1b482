#include "host/formats/torch/storage_plan.hpp"

#include <algorithm>

namespace cbk::torch {
namespace {

/// A view that torch can describe too: strides that are not negative.
const View* usable_view(const Tensor& tensor) {
  const View* view = tensor.view();
  if (view == nullptr) return nullptr;
  return std::ranges::all_of(view->strides, [](int64_t stride) { return stride >= 0; }) ? view : nullptr;
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

}  // namespace

int64_t StoragePlan::Cluster::cost(const std::deque<Use>& uses_of_plan) const {
  return is_dense ? uses_of_plan[uses.front()].tensor.numel() : end - begin;
}

void StoragePlan::add(const Tensor& tensor, const std::string& storage_class, const std::string& path) {
  const View* view = usable_view(tensor);
  Use use{tensor, path, 0, tensor.numel()};
  if (view != nullptr) {
    use.begin = view->offset;
    use.end = end_of(*view);
  }
  const void* source = tensor.expression().get();
  if (view != nullptr) source = view->storage.get();
  // Raw elements without a storage class of their own are told apart by their dtype.
  const std::string kind = storage_class + " " + std::string(name_of(tensor.dtype()));
  auto [found, is_new] = by_source_.try_emplace({source, kind}, groups_.size());
  if (is_new) groups_.push_back({storage_class, view != nullptr ? view->storage : nullptr, {}});
  groups_[found->second].uses.push_back(static_cast<uint32_t>(uses_.size()));
  uses_.push_back(std::move(use));
}

void StoragePlan::arrange() {
  by_source_.clear();
  storages_.resize(groups_.size());
  stored_.resize(uses_.size());
  for (size_t i = 0; i < storages_.size(); ++i) {
    arrange_group(groups_.front(), i);
    groups_.pop_front();
  }
  uses_.clear();
}

StoredTensor StoragePlan::next() {
  StoredTensor stored = std::move(stored_.front());
  stored_.pop_front();
  return stored;
}

std::vector<StoragePlan::Cluster> StoragePlan::clusters_of(const Group& group) const {
  std::vector<uint32_t> order = group.uses;
  std::ranges::stable_sort(order, {}, [this](uint32_t use) { return uses_[use].begin; });
  std::vector<Cluster> clusters;
  for (const uint32_t use : order) {
    if (clusters.empty() || uses_[use].begin >= clusters.back().end)
      clusters.push_back({uses_[use].begin, 0, {}, false});
    clusters.back().end = std::max(clusters.back().end, uses_[use].end);
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

void StoragePlan::arrange_group(const Group& group, size_t key) {
  PlannedStorage& storage = storages_[key];
  const DType dtype = uses_[group.uses.front()].tensor.dtype();
  if (group.source == nullptr) {
    const Use& first = uses_[group.uses.front()];
    storage.segments.push_back({first.tensor, first.path});
    storage.bytes = first.tensor.nbytes();
    for (const uint32_t use : group.uses)
      stored_[use].strides = contiguous_strides(uses_[use].tensor.shape());
  } else {
    const std::vector<Cluster> clusters = clusters_of(group);
    int64_t used = 0;
    for (const Cluster& cluster : clusters) used += cluster.cost(uses_);
    if (static_cast<uint64_t>(used) * size_of(dtype) >= group.source->size() / 2) {
      write_whole(group, storage);
    } else {
      write_clusters(group, clusters, storage);
    }
  }
  const bool is_untyped = group.storage_class == "UntypedStorage";
  for (const uint32_t use : group.uses) {
    StoredTensor& stored = stored_[use];
    stored.storage_class = group.storage_class;
    stored.key = std::to_string(key);
    stored.storage_numel = static_cast<int64_t>(storage.bytes / (is_untyped ? 1 : size_of(dtype)));
  }
}

void StoragePlan::write_whole(const Group& group, PlannedStorage& storage) {
  const Use& first = uses_[group.uses.front()];
  const DType dtype = first.tensor.dtype();
  const auto elements = static_cast<int64_t>(group.source->size() / size_of(dtype));
  storage.bytes = static_cast<uint64_t>(elements) * size_of(dtype);
  const bool is_first_whole = first.tensor.nbytes() == storage.bytes && first.begin == 0 &&
                              first.tensor.view()->strides == contiguous_strides(first.tensor.shape());
  storage.segments.reserve(1);
  storage.segments.push_back(
      {is_first_whole ? first.tensor : range_of(group.source, dtype, 0, elements), first.path});
  if (storage.bytes == group.source->size()) storage.crc32 = group.source->crc32();
  for (const uint32_t use : group.uses) {
    const View& view = *uses_[use].tensor.view();
    stored_[use].offset = view.offset;
    stored_[use].strides = view.strides;
  }
}

void StoragePlan::write_clusters(const Group& group, const std::vector<Cluster>& clusters,
                                 PlannedStorage& storage) {
  const DType dtype = uses_[group.uses.front()].tensor.dtype();
  int64_t base = 0;
  for (const Cluster& cluster : clusters) {
    const Use& first = uses_[cluster.uses.front()];
    const Tensor segment =
        cluster.is_dense ? first.tensor : range_of(group.source, dtype, cluster.begin, cluster.end);
    storage.segments.push_back({segment, first.path});
    for (const uint32_t use : cluster.uses) {
      const View& view = *uses_[use].tensor.view();
      stored_[use].offset = base + (cluster.is_dense ? 0 : view.offset - cluster.begin);
      stored_[use].strides = cluster.is_dense ? contiguous_strides(view.shape) : view.strides;
    }
    base += cluster.cost(uses_);
  }
  storage.bytes = static_cast<uint64_t>(base) * size_of(dtype);
}

}  // namespace cbk::torch
