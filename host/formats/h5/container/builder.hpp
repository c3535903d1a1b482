// Writes the structures of an HDF5 file: old-style groups, object headers, global heap collections.
//
// libhdf5 is not used for it: 20,000 attributes on one object take it most of a minute. Raw data comes first
// in the file and is laid out by the caller; all structures follow it in one run, so that their places are
// known without a second pass.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "host/formats/h5/container/encode.hpp"

namespace cbk::h5 {

class Builder {
 public:
  /// `start`: where the structures begin, a multiple of 8. `expected`: about how many bytes they will take.
  Builder(uint64_t start, uint64_t expected, GroupRanks ranks = {}) : start_(start), ranks_(ranks) {
    image_.reserve(expected);
  }

  /// Appends a structure; its address.
  uint64_t add(std::string_view bytes);

  /// A variable-length text: the 16 bytes that stand for it in an attribute.
  std::string text(std::string_view text);

  void add_text(HeaderBuilder& header, std::string_view name, std::string_view value);
  void add_bool(HeaderBuilder& header, std::string_view name, bool value);

  /// An object whose attributes lie in dense storage, where they may be of any size: (name, encoded
  /// attribute).
  uint64_t add_with_dense_attributes(HeaderBuilder header,
                                     const std::vector<std::pair<std::string, std::string>>& attributes);

  using Links = std::map<std::string, uint64_t>;         // name → object
  using SoftLinks = std::map<std::string, std::string>;  // name → path
  GroupTables add_group_tables(const Links& links, const SoftLinks& soft = {});
  /// A group that is an object of its own.
  uint64_t add_group(const Links& links);

  /// Everything that was added; call once, at the end.
  std::string finish();
  [[nodiscard]] uint64_t end() const { return start_ + image_.size(); }

 private:
  /// One name of a group.
  struct Entry {
    uint64_t name = 0;  // offset in the heap
    uint64_t object = undefined_address;
    uint64_t path = 0;  // soft links: offset in the heap
  };
  uint64_t add_leaf_node(const std::vector<Entry>& entries, size_t begin, size_t end);
  void open_collection(uint64_t least);
  void close_collection();

  uint64_t start_;
  GroupRanks ranks_;
  std::string image_;
  // The collection of texts that is being filled: reserved in the image, written piece by piece.
  uint64_t collection_ = 0;  // offset in the image
  uint64_t used_ = 0;
  uint64_t capacity_ = 0;
  uint16_t objects_ = 0;
};

}  // namespace cbk::h5
