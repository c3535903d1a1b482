#include "host/formats/h5/container/builder.hpp"

#include <algorithm>

namespace cbk::h5 {
namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;

constexpr uint64_t collection_head = 16;
constexpr uint64_t object_head = 16;
constexpr uint64_t least_collection = 4096;
constexpr uint64_t usual_collection = 65536;
constexpr uint16_t max_objects = 60000;

// Half the capacity of the nodes of a group, as the superblock says.
constexpr size_t leaf_rank = 4;
constexpr size_t tree_rank = 16;
constexpr size_t entry_size = 40;

void put(std::string& image, uint64_t at, std::string_view bytes) {
  image.replace(at, bytes.size(), bytes);
}

}  // namespace

uint64_t Builder::add(std::string_view bytes) {
  const uint64_t at = image_.size();
  image_ += bytes;
  image_.resize(align_up(image_.size(), 8), '\0');
  return start_ + at;
}

void Builder::close_collection() {
  if (capacity_ == 0) return;
  const uint64_t left = capacity_ - used_;
  // Free space is object 0; a rest that has no room for its head needs none.
  if (left >= object_head) {
    std::string free;
    append_le<uint64_t>(free, 0);
    append_le<uint64_t>(free, left);
    put(image_, collection_ + used_, free);
  }
  capacity_ = 0;
}

void Builder::open_collection(uint64_t least) {
  close_collection();
  // Small files get small collections.
  const uint64_t usual =
      std::clamp(align_up(image_.size(), least_collection), least_collection, usual_collection);
  capacity_ = std::max(usual, collection_head + least);
  collection_ = image_.size();
  used_ = collection_head;
  objects_ = 0;
  image_.resize(collection_ + capacity_, '\0');
  std::string head = "GCOL\1\0\0\0"s;
  append_le(head, capacity_);
  put(image_, collection_, head);
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
  if (needed > capacity_ - std::min(capacity_, used_) || objects_ == max_objects) open_collection(needed);
  ++objects_;
  std::string head;
  append_le(head, objects_);
  append_le<uint16_t>(head, 0);
  append_le<uint32_t>(head, 0);
  append_le<uint64_t>(head, text.size());
  put(image_, collection_ + used_, head);
  put(image_, collection_ + used_ + object_head, text);
  used_ += needed;
  append_le(reference, start_ + collection_);
  append_le<uint32_t>(reference, objects_);
  return reference;
}

void Builder::add_text(HeaderBuilder& header, std::string_view name, std::string_view value) {
  header.add_attribute(name, text_datatype(), scalar_dataspace(), text(value));
}

void Builder::add_bool(HeaderBuilder& header, std::string_view name, bool value) {
  static const std::string type = encode_datatype(DType::boolean);
  header.add_attribute(name, type, scalar_dataspace(), value ? "\1"sv : "\0"sv);
}

Builder::GroupTables Builder::add_group_tables(const Links& links) {
  // Names first; offset 0 is the empty name that lies before all others.
  std::string names(8, '\0');
  std::vector<std::pair<uint64_t, uint64_t>> entries;  // name, object
  entries.reserve(links.size());
  for (const auto& [name, object] : links) {
    entries.emplace_back(names.size(), object);
    names += name;
    names.resize(align_up(names.size() + 1, 8), '\0');
  }
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
  std::vector<Node> below;
  for (size_t begin = 0; begin < entries.size(); begin += 2 * leaf_rank) {
    const size_t end = std::min(entries.size(), begin + 2 * leaf_rank);
    below.push_back({add_leaf_node(entries, begin, end), entries[end - 1].first});
  }
  for (uint8_t level = 0;; ++level) {
    constexpr size_t node_size = 24 + 2 * tree_rank * 8 + (2 * tree_rank + 1) * 8;
    const size_t count = std::max<size_t>(1, (below.size() + 2 * tree_rank - 1) / (2 * tree_rank));
    const uint64_t first = start_ + image_.size();
    std::vector<Node> nodes;
    uint64_t left_name = 0;
    for (size_t n = 0; n < count; ++n) {
      const size_t begin = n * 2 * tree_rank;
      const size_t end = std::min(below.size(), begin + 2 * tree_rank);
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

uint64_t Builder::add_leaf_node(const std::vector<std::pair<uint64_t, uint64_t>>& links, size_t begin,
                                size_t end) {
  std::string node = "SNOD\1\0"s;
  append_le(node, static_cast<uint16_t>(end - begin));
  for (size_t i = begin; i < end; ++i) {
    append_le(node, links[i].first);
    append_le(node, links[i].second);
    node.append(24, '\0');  // nothing cached
  }
  node.resize(8 + 2 * leaf_rank * entry_size, '\0');
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
  // Every attribute is a "huge" object of a fractal heap: its own run of bytes, found by number in one
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

std::string Builder::finish() {
  close_collection();
  return std::move(image_);
}

std::string Builder::superblock(uint64_t root, const GroupTables& tables, uint64_t end_of_file) {
  std::string out = "\x89HDF\r\n\x1a\n"s;
  out.append("\0\0\0\0\0\x8\x8\0", 8);
  append_le<uint16_t>(out, leaf_rank);
  append_le<uint16_t>(out, tree_rank);
  append_le<uint32_t>(out, 0);
  append_le<uint64_t>(out, 0);
  append_le(out, undefined_address);
  append_le(out, end_of_file);
  append_le(out, undefined_address);
  append_le<uint64_t>(out, 0);  // the root's entry: no name
  append_le(out, root);
  append_le<uint32_t>(out, 1);  // its tables follow
  append_le<uint32_t>(out, 0);
  append_le(out, tables.tree);
  append_le(out, tables.heap);
  return out;
}

}  // namespace cbk::h5
