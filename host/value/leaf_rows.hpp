// The leaves of a tree, or chosen ones, as rows of a listing: found by name, folded into groups, summed up.
// Rows never change, so that groups can keep their numbers; the tree below may. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/value/key_fold.hpp"
#include "host/value/leaf_table.hpp"
#include "host/value/tensor_ties.hpp"
#include "host/value/value.hpp"

namespace cbk {

/// A name for the type of a value: its dtype, or its kind.
using TypeOf = std::function<std::string_view(const Value& value)>;

class LeafRows {
 public:
  /// All leaves, or those that match the glob `pattern` and what is below such a name.
  explicit LeafRows(const Value& root, std::optional<std::string_view> pattern = std::nullopt);

  /// Only rows of these numbers, in this order.
  [[nodiscard]] LeafRows chosen(const std::vector<size_t>& rows) const;

  [[nodiscard]] size_t size() const { return chosen_ ? chosen_->size() : table().size(); }
  [[nodiscard]] std::string path(size_t row) const { return table().path(leaf(row)); }
  /// None for a leaf that the tree no longer has.
  [[nodiscard]] const Value& value(size_t row) const;
  /// The row of the leaf with this path, of those with the same path the one after `times` others.
  [[nodiscard]] std::optional<size_t> find(std::string_view path, size_t times) const;

  [[nodiscard]] const LeafTable& table() const { return all_->table; }
  [[nodiscard]] const TensorTies& ties() const { return all_->ties; }
  /// The number of the row's leaf in the table.
  [[nodiscard]] size_t leaf(size_t row) const { return chosen_ ? chosen_->at(row) : row; }

 private:
  struct All {
    LeafTable table;
    TensorTies ties;
    explicit All(const Value& root) : table(root), ties(table) {}
  };

  std::shared_ptr<const All> all_;
  std::optional<std::vector<uint32_t>> chosen_;  // leaves of the table; unset: all
  bool in_order_ = true;                         // of the table
};

/// Why a value cannot be read; empty if it can.
std::string_view problem_with(const Value& value);

/// Bytes that a tensor takes in its file: blocks if it is quantised.
uint64_t stored_bytes(const Tensor& tensor);

/// "[4, 2..3]"
std::string shape_text(const Shape& low, const Shape& high);

/// The key of a row in a listing.
std::string shown_key(const std::string& path);

/// Rows whose keys differ only in their numbers share a group. If they have few distinct shapes, each shape
/// has its own group. `rows` must outlive the result.
KeyFold fold_rows(const LeafRows& rows, const TypeOf& stored_type);

/// Sums that stop at the largest number.
struct TensorTotals {
  uint64_t tensors = 0;
  uint64_t numel = 0;
  uint64_t bytes = 0;  // as they are stored
  void add(const Tensor& tensor);
};

struct RowTotals {
  TensorTotals all;
  TensorTotals stored;  // tied tensors once
  uint64_t objects = 0;
  std::vector<std::pair<std::string_view, TensorTotals>> dtypes;  // in the order of their first tensors
};
RowTotals totals_of(const LeafRows& rows, const TypeOf& stored_type);

}  // namespace cbk
