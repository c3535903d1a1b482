// Folding long lists of keys: keys that differ only in numbers get one name, "layers.{0..31}.weight".
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace cbk {

/// Groups of similar rows, in the order of their first rows. Rows of one key never share a group. Not
/// thread-safe.
class KeyFold {
 public:
  /// The text of a row, from 0 on. It is not kept, but requested whenever it is needed.
  using Text = std::function<std::string(size_t row)>;

  /// `key`: as shown; called as long as this object lives. Only rows with the same `signature` share a
  /// group.
  KeyFold(size_t count, Text key, const Text& signature);

  [[nodiscard]] size_t size() const { return groups_.size(); }
  [[nodiscard]] std::string name(size_t group) const;
  [[nodiscard]] std::span<const uint32_t> rows(size_t group) const;

 private:
  class Folder;
  struct Group {
    uint32_t begin;  // in `members_`
    uint32_t end;
    uint32_t name;  // in `names_`, of several rows
  };

  Text key_;
  std::vector<uint32_t> members_;
  std::vector<std::string> names_;
  std::vector<Group> groups_;
};

}  // namespace cbk
