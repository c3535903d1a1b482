// Writes the structures of an HDF5 file: old-style groups, object headers, global heap collections.
//
// libhdf5 is not used, because 20,000 attributes on one object take it most of a minute. All structures are
// one run of bytes. Its size does not depend on where the data is: the caller decides that.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/formats/hdf5/encode.hpp"

namespace cbk::hdf5 {

class Builder {
 public:
  /// Receives final bytes, one piece after the other.
  using Sink = std::function<void(uint64_t address, std::string_view bytes)>;

  /// `start`: where the structures begin, a multiple of 8.
  Builder(uint64_t start, Sink sink, GroupRanks ranks = {})
      : start_(start), ranks_(ranks), sink_(std::move(sink)) {}

  /// Appends a structure and returns its address.
  uint64_t add(std::string_view bytes);

  /// A variable-length text: the 16 bytes that refer to it in an attribute.
  std::string text(std::string_view text);

  void add_text(HeaderBuilder& header, std::string_view name, std::string_view value);
  void add_bool(HeaderBuilder& header, std::string_view name, bool value);

  /// An object with attributes in dense storage, where they may have any size: (name, encoded
  /// attribute).
  uint64_t add_with_dense_attributes(HeaderBuilder header,
                                     const std::vector<std::pair<std::string, std::string>>& attributes);

  using Links = std::map<std::string, uint64_t>;         // name → object
  using SoftLinks = std::map<std::string, std::string>;  // name → path
  GroupTables add_group_tables(const Links& links, const SoftLinks& soft = {});
  /// A group as a separate object.
  uint64_t add_group(const Links& links);

  /// A chunk of a dataset: the coordinates of its first element, and its place.
  struct Chunk {
    std::vector<uint64_t> start;
    uint64_t address = 0;
    uint32_t size = 0;
    uint32_t mask = 0;
  };
  /// The B-tree of chunks in C order; `extents`: of a chunk, followed by the bytes of an element.
  uint64_t add_chunk_tree(std::span<const Chunk> chunks, std::span<const uint32_t> extents);

  /// Passes the remaining bytes to the sink; call once, at the end.
  void finish();
  [[nodiscard]] uint64_t end() const { return start_ + size(); }

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
  // Offsets count from `start_`.
  [[nodiscard]] uint64_t size() const { return given_ + image_.size(); }
  void put(uint64_t offset, std::string_view bytes);
  void give(uint64_t end);
  uint64_t add_large(std::string_view bytes);
  uint64_t add_large_text(std::string_view text);

  uint64_t start_;
  GroupRanks ranks_;
  Sink sink_;
  uint64_t given_ = 0;  // how much the sink has
  std::string image_;   // what follows
  // The collection of texts that is being filled: reserved in the image, written piece by piece.
  uint64_t collection_ = 0;
  uint64_t used_ = 0;
  uint64_t capacity_ = 0;
  uint16_t objects_ = 0;
};

}  // namespace cbk::hdf5
