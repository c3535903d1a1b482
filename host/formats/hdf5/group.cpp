#include "host/formats/hdf5/group.hpp"

#include <algorithm>

#include "host/formats/hdf5/btree2.hpp"

namespace cbk::hdf5 {
namespace {

constexpr uint64_t link_bytes = 320;  // in memory, with what finds it, about

void add_link(const Image& image, Link link, std::vector<Link>& links) {
  image.memory().charge(link_bytes + link.name.size() + link.target.size());
  links.push_back(std::move(link));
}

/// Fails if a node has something behind the entries that it counts: the library fills the rest with zeros.
void refuse_uncounted(ByteView rest, const char* what) {
  if (std::ranges::any_of(rest, [](std::byte b) { return b != std::byte{0}; }))
    damaged("{} has more entries than it counts", what);
}

void read_symbol_node(const Image& image, const LocalHeap& names, uint64_t address,
                      std::vector<Link>& links) {
  const FieldSizes sizes = image.sizes();
  Cursor head = image.cursor(address, 8, "a symbol table node");
  head.expect("SNOD");
  head.skip(2);
  const uint16_t count = head.u16();
  const uint64_t entry = 2ULL * sizes.address + 4 + 4 + 16;
  const uint64_t capacity = 2ULL * image.superblock().ranks.leaf;
  const uint64_t room = std::max<uint64_t>(count, capacity) * entry;
  image.claim_structure(address, 8 + room);
  Cursor in(image.bytes_up_to(address + 8, room, "a symbol table node"), sizes, "a symbol table node");
  for (uint16_t i = 0; i < count; ++i) {
    Link link;
    link.name = names.text(in.number(sizes.address));
    link.address = in.address();
    const uint32_t cached = in.u32();
    in.skip(4);
    Cursor scratch(in.take(16), sizes, "a symbol table entry");
    if (cached == 2) {
      link.kind = Link::Kind::soft;
      link.target = names.text(scratch.u32());
    }
    add_link(image, std::move(link), links);
  }
  refuse_uncounted(in.take(in.remaining()), "a symbol table node");
}

void read_symbol_tree(const Image& image, const LocalHeap& names, uint64_t address, int level,
                      std::vector<Link>& links) {
  const FieldSizes sizes = image.sizes();
  const uint64_t head = 8 + 2ULL * sizes.address;
  Cursor start = image.cursor(address, head, "a group's B-tree");
  start.expect("TREE");
  if (start.u8() != 0) damaged("a group's B-tree of the wrong type");
  const int found = start.u8();
  if (level >= 0 && found != level) damaged("a group's B-tree of uneven depth");
  const uint16_t count = start.u16();
  start.address();  // the node before it
  const bool is_last = start.address() == undefined_address;
  const uint64_t entry = uint64_t{sizes.length} + sizes.address;
  const uint64_t capacity = 2ULL * image.superblock().ranks.tree;
  const uint64_t room = std::max<uint64_t>(count, capacity) * entry + sizes.length;
  image.claim_structure(address, head + room);
  Cursor in(image.bytes_up_to(address + head, room, "a group's B-tree"), sizes, "a group's B-tree");
  for (uint16_t i = 0; i < count; ++i) {
    in.length();
    const uint64_t child = in.address();
    if (found == 0) {
      read_symbol_node(image, names, child, links);
    } else {
      read_symbol_tree(image, names, child, found - 1, links);
    }
  }
  in.length();
  // A node that was split may keep its old entries, from libraries before 1.8.
  if (is_last) refuse_uncounted(in.take(in.remaining()), "a group's B-tree");
}

Link read_link(Cursor in) {
  if (in.u8() != 1) damaged("a link message of an unknown version");
  const uint8_t flags = in.u8();
  const uint8_t kind = (flags & 8) != 0 ? in.u8() : 0;
  if ((flags & 4) != 0) in.skip(8);
  if ((flags & 16) != 0) in.skip(1);
  Link link;
  link.name = as_text(in.take(in.number(1U << (flags & 3))));
  if (kind == 0) {
    link.address = in.address();
  } else if (kind == 1) {
    link.kind = Link::Kind::soft;
    link.target = as_text(in.take(in.u16()));
  } else if (kind == 64) {
    link.kind = Link::Kind::external;
    Cursor value(in.take(in.u16()), in.sizes(), "an external link");
    value.skip(1);
    link.file = value.text();
    link.target = value.text();
  } else {
    link.kind = Link::Kind::other;
  }
  return link;
}

}  // namespace

std::vector<Link> read_links(const Image& image, const ObjectHeader& group) {
  std::vector<Link> links;
  for (const Message& message : group.messages) {
    Cursor in(message.body, image.sizes(), "a group");
    if (message.type == MessageType::symbol_table) {
      const uint64_t tree = in.address();
      const LocalHeap names(image, in.address());
      read_symbol_tree(image, names, tree, -1, links);
    } else if (message.type == MessageType::link) {
      add_link(image, read_link(in), links);
    } else if (message.type == MessageType::link_info) {
      in.skip(1);
      const uint8_t flags = in.u8();
      if ((flags & 1) != 0) in.skip(8);
      const uint64_t heap_address = in.address();
      if (heap_address == undefined_address) continue;
      const FractalHeap heap(image, heap_address);
      for_each_record(image, in.address(), RecordType::link_name, [&](Cursor record) {
        record.skip(4);
        add_link(image, read_link(Cursor(heap.find(record.take(7)), image.sizes(), "a link")), links);
      });
    }
  }
  return links;
}

}  // namespace cbk::hdf5
