// The leaves of a tree by number: a few bytes for each, regardless of their paths. Paths are made on demand.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/value/row_index.hpp"
#include "host/value/value.hpp"

namespace cbk {

/// The tree may change in the meantime: replaced leaves are seen with their new value, erased leaves are
/// absent, and new leaves are not seen. In a list a leaf is the item at its position. Not thread-safe.
class LeafTable {
  struct Place {  // of a value in a container
    uint32_t container;
    uint32_t position;
  };

 public:
  /// The order and the errors of `each_leaf`.
  explicit LeafTable(Value root);

  [[nodiscard]] size_t size() const { return leaves_.size(); }
  /// nullptr if it was erased since, or a container around it was erased or replaced.
  [[nodiscard]] const Value* value(size_t row) const;
  /// "model.layers.0.weight"; "" if the root is a leaf.
  [[nodiscard]] std::string path(size_t row) const;
  /// The row of this path, after `times` rows of the same path; the first look-up makes an index.
  [[nodiscard]] std::optional<size_t> find(std::string_view path, size_t times = 0) const;
  /// The number of earlier rows with the same path.
  [[nodiscard]] size_t earlier_rows(size_t row) const;

  /// A container with leaves below it; their rows follow each other.
  struct Container {
    Value node;
    Place place;
    uint32_t first_row;
    uint32_t row_after;
  };
  [[nodiscard]] const Container& container(uint32_t number) const { return containers_[number]; }
  /// The number of the container at the top of the tree: all leaves are below it, if it exists.
  static constexpr uint32_t top = 0;
  /// The number of the container that is in container `above` and around the leaf; nothing if the leaf itself
  /// is in `above`, or not below it.
  [[nodiscard]] std::optional<uint32_t> container_around(size_t row, uint32_t above) const;
  /// The record around the leaf with a path of this many parts; nullptr if that is a dict or a list.
  [[nodiscard]] const Object* record_around(size_t row, size_t parts) const;

 private:
  class Builder;

  [[nodiscard]] const Value* at(Place place) const;
  void append_path(Place place, std::string& out) const;
  void make_index() const;

  Value root_;
  std::vector<Container> containers_;
  std::vector<Dict::Pin> pins_;
  std::vector<Place> leaves_;
  mutable std::optional<RowIndex> index_;
  mutable std::vector<std::pair<uint32_t, uint32_t>> repeated_;  // a row, and the one before it of its path
};

}  // namespace cbk
