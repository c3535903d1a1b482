#include "host/formats/hdf5/builder.hpp"

#include <algorithm>

namespace cbk::hdf5 {
namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;

constexpr uint64_t collection_head = 16;
constexpr uint64_t object_head = 16;
constexpr uint64_t least_collection = 4096;
constexpr uint64_t usual_collection = 65536;
constexpr uint16_t max_objects = 60000;

constexpr size_t entry_size = 40;

constexpr uint64_t streamed_size = 1 << 20;

std::string collection_start(uint64_t size) {
  std::string head = "GCOL\1\0\0\0"s;
  append_le(head, size);
  return head;
}

/// The head of a text in a collection.
std::string text_head(uint16_t number, std::string_view text) {
  std::string head;
  append_le(head, number);
  append_le<uint16_t>(head, 0);
  append_le<uint32_t>(head, 0);
  append_le<uint64_t>(head, text.size());
  return head;
}

}  // namespace

void Builder::put(uint64_t offset, std::string_view bytes) {
  image_.replace(offset - given_, bytes.size(), bytes);
}

void Builder::give(uint64_t end) {
  const uint64_t count = end - given_;
  if (count == 0) return;
  sink_(start_ + given_, std::string_view(image_).substr(0, count));
  image_.erase(0, count);
  given_ = end;
}

uint64_t Builder::add(std::string_view bytes) {
  if (bytes.size() > streamed_size) return add_large(bytes);
  if (image_.size() > streamed_size) give(capacity_ > 0 ? collection_ : size());
  const uint64_t at = size();
  image_ += bytes;
  image_.resize(align_up(image_.size(), 8), '\0');
  return start_ + at;
}

uint64_t Builder::add_large(std::string_view bytes) {
  close_collection();
  give(size());
  const uint64_t address = end();
  sink_(address, bytes);
  const uint64_t padding = align_up(bytes.size(), 8) - bytes.size();
  sink_(address + bytes.size(), std::string(padding, '\0'));
  given_ += bytes.size() + padding;
  return address;
}

void Builder::close_collection() {
  if (capacity_ == 0) return;
  const uint64_t left = capacity_ - used_;
  // Free space is object 0; a rest too small for its head needs none.
  if (left >= object_head) {
    std::string free;
    append_le<uint64_t>(free, 0);
    append_le<uint64_t>(free, left);
    put(collection_ + used_, free);
  }
  capacity_ = 0;
}

void Builder::open_collection(uint64_t least) {
  close_collection();
  // Small files get small collections.
  const uint64_t usual = std::clamp(align_up(size(), least_collection), least_collection, usual_collection);
  capacity_ = std::max(usual, collection_head + least);
  if (image_.size() > streamed_size) give(size());
  collection_ = size();
  used_ = collection_head;
  objects_ = 0;
  image_.resize(image_.size() + capacity_, '\0');
  put(collection_, collection_start(capacity_));
}

std::string Builder::text(std::string_view text) {
  std::string reference;
  if (text.size() > UINT32_MAX - 64)
    fail(Errc::value, "a text of {} is too long for HDF5", format_size(text.size()));
  append_le(reference, static_cast<uint32_t>(text.size()));
  if (text.empty()) {
    reference.append(12, '\0');
    return reference;
  }
  const uint64_t needed = object_head + align_up(text.size(), 8);
  if (needed > streamed_size) {
    append_le(reference, add_large_text(text));
    append_le<uint32_t>(reference, 1);
    return reference;
  }
  if (needed > capacity_ - std::min(capacity_, used_) || objects_ == max_objects) open_collection(needed);
  ++objects_;
  put(collection_ + used_, text_head(objects_, text));
  put(collection_ + used_ + object_head, text);
  used_ += needed;
  append_le(reference, start_ + collection_);
  append_le<uint32_t>(reference, objects_);
  return reference;
}

/// A separate collection, outside the image.
uint64_t Builder::add_large_text(std::string_view text) {
  close_collection();
  give(size());
  const uint64_t address = end();
  const uint64_t padded = align_up(text.size(), 8);
  const std::string head = collection_start(collection_head + object_head + padded) + text_head(1, text);
  sink_(address, head);
  sink_(address + head.size(), text);
  if (padded > text.size())
    sink_(address + head.size() + text.size(), std::string(padded - text.size(), '\0'));
  given_ += head.size() + padded;
  return address;
}

void Builder::add_text(HeaderBuilder& header, std::string_view name, std::string_view value) {
  header.add_attribute(name, text_datatype(), scalar_dataspace(), text(value));
}

void Builder::add_bool(HeaderBuilder& header, std::string_view name, bool value) {
  static const std::string type = encode_datatype(DType::boolean);
  header.add_attribute(name, type, scalar_dataspace(), value ? "\1"sv : "\0"sv);
}

GroupTables Builder::add_group_tables(const Links& links, const SoftLinks& soft) {
  // Names first; offset 0 is the empty name before all others.
  std::string names(8, '\0');
  const auto add_name = [&names](const std::string& name) {
    const uint64_t at = names.size();
    names += name;
    names.resize(align_up(names.size() + 1, 8), '\0');
    return at;
  };
  std::vector<Entry> entries;
  entries.reserve(links.size() + soft.size());
  auto next = soft.begin();
  const auto add_soft = [&] {
    const uint64_t name = add_name(next->first);
    entries.push_back({name, undefined_address, add_name(next->second)});
    ++next;
  };
  for (const auto& [name, object] : links) {
    while (next != soft.end() && next->first < name) add_soft();
    entries.push_back({add_name(name), object, 0});
  }
  while (next != soft.end()) add_soft();
  std::string heap = "HEAP\0\0\0\0"s;
  append_le<uint64_t>(heap, names.size());
  append_le<uint64_t>(heap, 1);  // no free space
  append_le<uint64_t>(heap, add(names));
  GroupTables tables;
  tables.heap = add(heap);

  struct Node {
    uint64_t address = 0;
    uint64_t last_name = 0;
  };
  const size_t leaf_capacity = size_t{2} * ranks_.leaf;
  const size_t tree_capacity = size_t{2} * ranks_.tree;
  std::vector<Node> below;
  for (size_t begin = 0; begin < entries.size(); begin += leaf_capacity) {
    const size_t end = std::min(entries.size(), begin + leaf_capacity);
    below.push_back({add_leaf_node(entries, begin, end), entries[end - 1].name});
  }
  for (uint8_t level = 0;; ++level) {
    const size_t node_size = 24 + tree_capacity * 8 + (tree_capacity + 1) * 8;
    const size_t count = std::max<size_t>(1, (below.size() + tree_capacity - 1) / tree_capacity);
    const uint64_t first = end();
    std::vector<Node> nodes;
    uint64_t left_name = 0;
    for (size_t n = 0; n < count; ++n) {
      const size_t begin = n * tree_capacity;
      const size_t end = std::min(below.size(), begin + tree_capacity);
      std::string node = "TREE"s;
      append_le<uint8_t>(node, 0);
      append_le(node, level);
      append_le(node, static_cast<uint16_t>(end - begin));
      append_le(node, n == 0 ? undefined_address : first + (n - 1) * node_size);
      append_le(node, n + 1 == count ? undefined_address : first + (n + 1) * node_size);
      append_le(node, left_name);
      for (size_t i = begin; i < end; ++i) {
        append_le(node, below[i].address);
        append_le(node, below[i].last_name);
        left_name = below[i].last_name;
      }
      node.resize(node_size, '\0');
      nodes.push_back({add(node), left_name});
    }
    below = std::move(nodes);
    if (below.size() == 1) break;
  }
  tables.tree = below.front().address;
  return tables;
}

namespace {

/// A key is the first chunk below a child; the last key is beyond all chunks.
std::string chunk_key(const Builder::Chunk& chunk) {
  std::string out;
  append_le(out, chunk.size);
  append_le(out, chunk.mask);
  for (const uint64_t start : chunk.start) append_le(out, start);
  append_le<uint64_t>(out, 0);  // within an element
  return out;
}

std::string last_chunk_key(const Builder::Chunk& last, std::span<const uint32_t> extents) {
  std::string out(8, '\0');
  for (size_t d = 0; d < last.start.size(); ++d) append_le<uint64_t>(out, last.start[d] + extents[d]);
  append_le<uint64_t>(out, extents.back());
  return out;
}

}  // namespace

uint64_t Builder::add_chunk_tree(std::span<const Chunk> chunks, std::span<const uint32_t> extents) {
  constexpr size_t capacity = 64;  // of a node, in files with a superblock of version 0
  const size_t key_size = 8 + 8 * extents.size();
  const size_t node_size = 24 + capacity * 8 + (capacity + 1) * key_size;
  struct Node {
    uint64_t address = 0;
    size_t first = 0;  // chunk below it
  };
  std::vector<Node> below;
  for (size_t i = 0; i < chunks.size(); ++i) below.push_back({chunks[i].address, i});
  const std::string end_key = last_chunk_key(chunks.back(), extents);
  const auto key = [&](size_t i) { return i < below.size() ? chunk_key(chunks[below[i].first]) : end_key; };
  for (uint8_t level = 0;; ++level) {
    const size_t count = (below.size() + capacity - 1) / capacity;
    const uint64_t first = end();
    std::vector<Node> nodes;
    for (size_t n = 0; n < count; ++n) {
      const size_t begin = n * capacity;
      const size_t stop = std::min(below.size(), begin + capacity);
      std::string node = "TREE\1"s;
      append_le(node, level);
      append_le(node, static_cast<uint16_t>(stop - begin));
      append_le(node, n == 0 ? undefined_address : first + (n - 1) * node_size);
      append_le(node, n + 1 == count ? undefined_address : first + (n + 1) * node_size);
      for (size_t i = begin; i < stop; ++i) {
        node += key(i);
        append_le(node, below[i].address);
      }
      node += key(stop);
      node.resize(node_size, '\0');
      nodes.push_back({add(node), below[begin].first});
    }
    below = std::move(nodes);
    if (below.size() == 1) return below.front().address;
  }
}

uint64_t Builder::add_leaf_node(const std::vector<Entry>& entries, size_t begin, size_t end) {
  std::string node = "SNOD\1\0"s;
  append_le(node, static_cast<uint16_t>(end - begin));
  for (size_t i = begin; i < end; ++i) {
    const Entry& entry = entries[i];
    append_le(node, entry.name);
    append_le(node, entry.object);
    append_le<uint32_t>(node, entry.path == 0 ? 0 : 2);  // nothing is cached, or: a soft link
    append_le<uint32_t>(node, 0);
    append_le<uint32_t>(node, static_cast<uint32_t>(entry.path));
    node.append(12, '\0');
  }
  node.resize(8 + size_t{2} * ranks_.leaf * entry_size, '\0');
  return add(node);
}

uint64_t Builder::add_group(const Links& links) {
  const GroupTables tables = add_group_tables(links);
  HeaderBuilder header;
  header.add(MessageType::symbol_table, encode_symbol_table(tables.tree, tables.heap));
  return add(header.finish());
}

uint64_t Builder::add_with_dense_attributes(
    HeaderBuilder header, const std::vector<std::pair<std::string, std::string>>& attributes) {
  // Every attribute is a "huge" object of a fractal heap: a separate run of bytes, found by number in one
  // B-tree, while another one finds numbers by the hash of the name.
  struct Record {
    uint32_t hash;
    uint64_t number;
  };
  const auto add_tree = [&](uint8_t type, uint16_t record_size, const std::string& records, size_t count) {
    constexpr uint32_t least_node = 512;
    const auto node_size =
        static_cast<uint32_t>(std::max<uint64_t>(least_node, align_up(records.size() + 10, 512)));
    std::string leaf = "BTLF\0"s;
    append_le(leaf, type);
    leaf += records;
    append_le(leaf, lookup3(as_bytes(leaf)));
    leaf.resize(node_size, '\0');
    std::string head = "BTHD\0"s;
    append_le(head, type);
    append_le(head, node_size);
    append_le(head, record_size);
    append_le<uint16_t>(head, 0);  // depth
    append_le<uint8_t>(head, 100);
    append_le<uint8_t>(head, 40);
    append_le(head, add(leaf));
    append_le(head, static_cast<uint16_t>(count));
    append_le<uint64_t>(head, count);
    append_le(head, lookup3(as_bytes(head)));
    return add(head);
  };

  std::string objects;
  std::vector<Record> order;
  uint64_t total = 0;
  for (size_t i = 0; i < attributes.size(); ++i) {
    const auto& [name, body] = attributes[i];
    append_le(objects, add(body));
    append_le<uint64_t>(objects, body.size());
    append_le<uint64_t>(objects, i + 1);
    order.push_back({lookup3(as_bytes(name)), i + 1});
    total += body.size();
  }
  std::sort(order.begin(), order.end(), [](const Record& a, const Record& b) { return a.hash < b.hash; });
  std::string by_name;
  for (const Record& record : order) {
    by_name += '\x10';  // a huge object
    by_name.append(reinterpret_cast<const char*>(&record.number), 7);
    append_le<uint8_t>(by_name, 0);
    append_le(by_name, static_cast<uint32_t>(record.number - 1));
    append_le(by_name, record.hash);
  }
  const uint64_t object_tree = add_tree(1, 24, objects, attributes.size());
  const uint64_t name_tree = add_tree(8, 17, by_name, attributes.size());

  std::string heap = "FRHP\0"s;
  append_le<uint16_t>(heap, 8);     // bytes of an id
  append_le<uint16_t>(heap, 0);     // no filters
  append_le<uint8_t>(heap, 2);      // blocks have checksums
  append_le<uint32_t>(heap, 4096);  // largest managed object
  append_le<uint64_t>(heap, attributes.size() + 1);
  append_le(heap, object_tree);
  append_le<uint64_t>(heap, 0);
  append_le(heap, undefined_address);                        // free space
  for (int i = 0; i < 4; ++i) append_le<uint64_t>(heap, 0);  // managed space
  append_le(heap, total);
  append_le<uint64_t>(heap, attributes.size());
  append_le<uint64_t>(heap, 0);  // tiny objects
  append_le<uint64_t>(heap, 0);
  append_le<uint16_t>(heap, 4);      // width of the doubling table
  append_le<uint64_t>(heap, 1024);   // first block
  append_le<uint64_t>(heap, 65536);  // largest direct block
  append_le<uint16_t>(heap, 40);     // bits of an offset
  append_le<uint16_t>(heap, 1);
  append_le(heap, undefined_address);  // root block
  append_le<uint16_t>(heap, 0);
  append_le(heap, lookup3(as_bytes(heap)));

  std::string info("\0\0"sv);
  append_le(info, add(heap));
  append_le(info, name_tree);
  header.use_version_2();  // older headers cannot have dense attributes
  header.add(MessageType::attribute_info, info);
  return add(header.finish());
}

void Builder::finish() {
  close_collection();
  give(size());
}

}  // namespace cbk::hdf5
