// Finds tensors of a tree that are one tensor under several names (tied), and tensors that only share a
// storage.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "host/value/leaf_table.hpp"

namespace cbk {

/// Rows are those of the table. Not thread-safe.
class TensorTies {
 public:
  explicit TensorTies(const LeafTable& table);

  /// The first row with the same view of the same bytes, if it is another row.
  [[nodiscard]] std::optional<size_t> tied_to(size_t row) const;
  /// The first row with other bytes of the storage, for a row that is not tied to an earlier one.
  [[nodiscard]] std::optional<size_t> shares_with(size_t row) const;

  struct Rows {
    std::vector<size_t> first;  // at most as many as asked for
    size_t count = 0;           // of all
  };
  /// All others that are tied to this row.
  [[nodiscard]] Rows all_tied(size_t row, size_t most) const;
  /// All rows with other bytes of its storage.
  [[nodiscard]] Rows all_sharing(size_t row, size_t most) const;

 private:
  // A tensor with a storage that has, or may have, several owners. Numbers are positions in `members_`.
  struct Member {
    uint32_t row;
    uint32_t storage;          // the first member of the storage
    uint32_t view;             // the first member with this view
    uint32_t next_in_storage;  // 0: none
    uint32_t next_in_view;
    uint32_t storage_count = 0;  // of a first one
    uint32_t view_count = 0;
  };

  [[nodiscard]] const Member* member(size_t row) const;

  std::vector<Member> members_;  // by row
};

}  // namespace cbk
