#include "host/value/tensor_ties.hpp"

#include <algorithm>
#include <unordered_map>

#include "host/base/hash.hpp"
#include "host/tensor/expression.hpp"

namespace cbk {
namespace {

/// The object that tensors with common bytes share; nullptr for a tensor with its own bytes, as most have.
const void* shared_storage(const Value& value) {
  const TensorLeaf& leaf = value.as_leaf();
  const View* view = leaf.tensor.view();
  if (view == nullptr || leaf.tensor.nbytes() == 0) return value.is_unshared() ? nullptr : &leaf;
  const bool is_only_one =
      value.is_unshared() && view->storage.use_count() == 1 && leaf.tensor.expression().use_count() == 1;
  return is_only_one ? nullptr : view->storage.get();
}

void append(std::string& out, int64_t number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

/// Equal for tensors that view the same bytes in the same way.
size_t view_hash(const void* storage, const Tensor& tensor) {
  std::string bytes;
  append(bytes, static_cast<int64_t>(reinterpret_cast<intptr_t>(storage)));
  append(bytes, static_cast<int64_t>(tensor.dtype()));
  for (const int64_t extent : tensor.shape()) append(bytes, extent);
  if (const View* view = tensor.view()) {
    append(bytes, view->offset);
    for (const int64_t stride : view->strides) append(bytes, stride);
  }
  return KeyedHash()(bytes);
}

}  // namespace

TensorTies::TensorTies(const LeafTable& table) {
  std::unordered_map<const void*, std::pair<uint32_t, uint32_t>> storages;  // the first and the last member
  std::vector<uint32_t> last_in_view;                                       // by first member
  RowIndex views;
  for (size_t row = 0; row < table.size(); ++row) {
    const Value* value = table.value(row);
    if (value == nullptr || !value->is(Value::Kind::tensor)) continue;
    const void* storage = shared_storage(*value);
    if (storage == nullptr) continue;
    const auto own = static_cast<uint32_t>(members_.size());
    const auto [place, is_new] = storages.try_emplace(storage, own, own);
    const uint32_t first = place->second.first;
    uint32_t& last = place->second.second;
    const auto is_same = [&](uint32_t other) {
      return members_[other].storage == first &&
             table.value(members_[other].row)->as_tensor().same_data(value->as_tensor());
    };
    const uint32_t view =
        views.find_or_add(view_hash(storage, value->as_tensor()), own, is_same).value_or(own);
    members_.push_back({static_cast<uint32_t>(row), first, view, 0, 0});
    last_in_view.push_back(own);
    if (!is_new) members_[last].next_in_storage = own;
    last = own;
    if (view != own) members_[last_in_view[view]].next_in_view = own;
    last_in_view[view] = own;
    ++members_[first].storage_count;
    ++members_[view].view_count;
  }
}

const TensorTies::Member* TensorTies::member(size_t row) const {
  const auto found = std::ranges::lower_bound(members_, row, {}, &Member::row);
  return found != members_.end() && found->row == row ? &*found : nullptr;
}

std::optional<size_t> TensorTies::tied_to(size_t row) const {
  const Member* own = member(row);
  if (own == nullptr || members_[own->view].row == row) return std::nullopt;
  return members_[own->view].row;
}

std::optional<size_t> TensorTies::shares_with(size_t row) const {
  const Member* own = member(row);
  if (own == nullptr || members_[own->view].row != row || members_[own->storage].row == row)
    return std::nullopt;
  return members_[own->storage].row;
}

TensorTies::Rows TensorTies::all_tied(size_t row, size_t most) const {
  const Member* own = member(row);
  if (own == nullptr) return {};
  Rows rows{{}, members_[own->view].view_count - size_t{1}};
  for (uint32_t at = own->view; rows.first.size() < std::min(most, rows.count);
       at = members_[at].next_in_view) {
    if (members_[at].row != row) rows.first.push_back(members_[at].row);
  }
  return rows;
}

TensorTies::Rows TensorTies::all_sharing(size_t row, size_t most) const {
  const Member* own = member(row);
  if (own == nullptr) return {};
  Rows rows{{}, members_[own->storage].storage_count - size_t{members_[own->view].view_count}};
  for (uint32_t at = own->storage; rows.first.size() < std::min(most, rows.count);
       at = members_[at].next_in_storage) {
    if (members_[at].view != own->view) rows.first.push_back(members_[at].row);
  }
  return rows;
}

}  // namespace cbk
