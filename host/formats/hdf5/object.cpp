#include "host/formats/hdf5/object.hpp"

#include <algorithm>

#include "host/formats/hdf5/btree2.hpp"

namespace cbk::hdf5 {
namespace {

/// Far more than any library writes into one header; one or two bytes of a file can make a message.
constexpr size_t most_messages = 1 << 19;
constexpr uint64_t attribute_bytes = 320;  // in memory, about

struct Block {
  uint64_t address = 0;
  uint64_t length = 0;
};

/// Fails for a message without which an object would be misread, if its type is not known.
void refuse_unknown(uint16_t type, uint8_t flags) {
  constexpr uint16_t unused = 0x09;
  constexpr uint16_t last = 0x18;
  constexpr uint8_t must_be_understood = 0x80;
  if ((type != unused && type <= last) || (flags & must_be_understood) == 0) return;
  damaged(
      "its header has a message of the unknown type {}, which a reader must understand; is it of a newer "
      "HDF5?",
      type);
}

/// Messages of one block of a header; continuations are appended to `more`.
void read_messages(Cursor in, bool old_style, bool tracks_order, std::vector<Message>& messages,
                   std::vector<Block>& more) {
  const uint64_t head = old_style ? 8 : 4 + (tracks_order ? 2 : 0);
  while (in.remaining() >= head) {
    const uint16_t type = old_style ? in.u16() : in.u8();
    const uint16_t size = in.u16();
    const uint8_t flags = in.u8();
    in.skip(old_style ? 3 : tracks_order ? 2 : 0);
    const ByteView body = in.take(size);
    if (type == static_cast<uint16_t>(MessageType::continuation)) {
      Cursor link(body, in.sizes(), "a continuation message");
      const uint64_t address = link.address();
      more.push_back({address, link.length()});
    } else if (type != 0) {
      refuse_unknown(type, flags);
      if (messages.size() == most_messages)
        damaged("an object header of more than {} messages", most_messages);
      messages.push_back({static_cast<MessageType>(type), (flags & 2) != 0, body, flags});
    }
  }
}

}  // namespace

const Message* ObjectHeader::find(MessageType type) const {
  for (const Message& message : messages) {
    if (message.type == type) return &message;
  }
  return nullptr;
}

bool ObjectHeader::is_group() const {
  return find(MessageType::symbol_table) != nullptr || find(MessageType::link_info) != nullptr ||
         find(MessageType::link) != nullptr;
}

bool ObjectHeader::is_dataset() const {
  using enum MessageType;
  return std::ranges::any_of(messages, [](const Message& message) {
    return message.type == layout || message.type == dataspace || message.type == fill_value ||
           message.type == old_fill_value || message.type == external_files;
  });
}

ObjectHeader Objects::read(uint64_t address) const {
  ObjectHeader object;
  object.address = address;
  std::vector<Block> more;
  const ByteView start = image_->bytes_up_to(address, 32, "an object header");
  const bool old_style = as_text(start.first(std::min<size_t>(4, start.size()))) != "OHDR";
  bool tracks_order = false;
  if (old_style) {
    Cursor in(start, image_->sizes(), "an object header");
    if (in.u8() != 1) damaged("no object header at byte {}", address);
    in.skip(1 + 2);
    object.references = in.u32();
    const uint32_t size = in.u32();
    image_->claim_structure(address, 16 + uint64_t{size});
    read_messages(image_->cursor(address + 16, size, "an object header"), true, false, object.messages, more);
  } else {
    Cursor in(start, image_->sizes(), "an object header");
    in.skip(4);
    if (in.u8() != 2) damaged("an object header of an unknown version");
    object.version = 2;
    const uint8_t flags = in.u8();
    tracks_order = (flags & 4) != 0;
    if ((flags & 0x20) != 0) in.skip(16);
    if ((flags & 0x10) != 0) in.skip(4);
    const uint64_t size = in.number(1U << (flags & 3));
    const uint64_t head = in.position();
    if (size > image_->file()->size()) damaged("an object header of {} bytes", size);
    Cursor body = image_->checked(address, head + size + 4, "OHDR", "an object header");
    body.skip(head - 4);
    read_messages(body, false, tracks_order, object.messages, more);
  }
  for (size_t i = 0; i < more.size(); ++i) {
    const Block block = more[i];
    if (old_style) {
      const Cursor body = image_->cursor(block.address, block.length, "a header continuation");
      image_->claim_structure(block.address, block.length);
      read_messages(body, true, false, object.messages, more);
    } else {
      read_messages(image_->checked(block.address, block.length, "OCHK", "a header continuation"), false,
                    tracks_order, object.messages, more);
    }
  }
  if (const Message* count = object.find(MessageType::references)) {
    Cursor in(count->body, image_->sizes(), "a reference count");
    in.skip(1);
    object.references = in.u32();
  }
  return object;
}

ByteView Objects::content(const Message& message) const {
  if (!message.shared) return message.body;
  Cursor in(message.body, image_->sizes(), "a shared message");
  const uint8_t version = in.u8();
  const uint8_t kind = in.u8();
  if (version < 1 || version > 3) damaged("a shared message of unknown version {}", version);
  if (version == 3 && kind == 1) return in_shared_table(message.type, in.take(8));
  if (version == 3 && kind != 2) damaged("a shared message of unknown kind {}", kind);
  if (version == 1) in.skip(6ULL + image_->sizes().length);
  // In a separate object, as a committed datatype.
  const ObjectHeader owner = read(in.address());
  const Message* found = owner.find(message.type);
  if (found == nullptr || found->shared) damaged("a shared message whose object does not have it");
  return found->body;
}

/// The table lists indexes by message type. Each index has a heap, which contains the messages by id.
ByteView Objects::in_shared_table(MessageType type, ByteView heap_id) const {
  const uint64_t extension = image_->superblock().extension;
  if (image_->superblock().version < 2 || extension == undefined_address)
    damaged("a shared message in a file without a table of them");
  const ObjectHeader root = read(extension);
  const Message* where = root.find(MessageType::shared_table);
  if (where == nullptr) damaged("a shared message in a file without a table of them");
  const FieldSizes sizes = image_->sizes();
  Cursor place(where->body, sizes, "a shared message table");
  place.skip(1);
  const uint64_t address = place.address();
  const uint8_t count = place.u8();
  const uint64_t row = 1 + 1 + 2 + 4 + 2 + 2 + 2 + 2ULL * sizes.address;
  Cursor in = image_->checked(address, 4 + count * row + 4, "SMTB", "a shared message table");
  for (int i = 0; i < count; ++i) {
    in.skip(1 + 1);
    const uint16_t types = in.u16();
    in.skip(4 + 2 + 2 + 2);
    in.address();  // the index by content, which writers need
    const uint64_t heap = in.address();
    if ((types >> static_cast<unsigned>(type) & 1) != 0) return FractalHeap(*image_, heap).find(heap_id);
  }
  damaged("a shared message of type {} that no table has", static_cast<unsigned>(type));
}

Datatype Objects::datatype(const Message& message) const {
  Cursor in(content(message), image_->sizes(), "a datatype");
  return read_datatype(in);
}

Attribute Objects::attribute(ByteView body) const {
  Cursor in(body, image_->sizes(), "an attribute");
  const uint8_t version = in.u8();
  if (version < 1 || version > 3) damaged("an attribute of unknown version {}", version);
  const uint8_t flags = version == 1 ? (in.u8(), uint8_t{0}) : in.u8();
  const uint16_t name_size = in.u16();
  const uint16_t type_size = in.u16();
  const uint16_t space_size = in.u16();
  if (version == 3) in.skip(1);
  const auto field = [&](uint16_t size) {
    ByteView bytes = in.take(size);
    if (version == 1) in.skip(align_up(size, 8) - size);
    return bytes;
  };
  Attribute result;
  result.body = body;
  const std::string_view name = as_text(field(name_size));
  result.name = name.substr(0, name.find('\0'));
  result.type = datatype({MessageType::datatype, (flags & 1) != 0, field(type_size)});
  Cursor space(content({MessageType::dataspace, (flags & 2) != 0, field(space_size)}), image_->sizes(),
               "a dataspace");
  result.space = read_dataspace(space);
  const uint64_t size = checked_mul(result.space.count(), result.type.size, "an attribute");
  result.data = in.take(size);
  return result;
}

std::vector<Attribute> Objects::attributes(const ObjectHeader& object) const {
  std::vector<Attribute> result;
  MemoryLoan memory(image_->memory());
  const auto add = [&](ByteView body) {
    memory.grow(attribute_bytes);
    result.push_back(attribute(body));
  };
  for (const Message& message : object.messages) {
    if (message.type == MessageType::attribute) {
      add(content(message));
    } else if (message.type == MessageType::attribute_info) {
      Cursor in(message.body, image_->sizes(), "an attribute info message");
      in.skip(1);
      const uint8_t flags = in.u8();
      if ((flags & 1) != 0) in.skip(2);
      const uint64_t heap_address = in.address();
      const uint64_t tree_address = in.address();
      if (heap_address == undefined_address) continue;
      const FractalHeap heap(*image_, heap_address);
      for_each_record(*image_, tree_address, RecordType::attribute_name, [&](Cursor record) {
        const ByteView id = record.take(8);
        const bool is_shared = (record.u8() & 2) != 0;
        add(is_shared ? in_shared_table(MessageType::attribute, id) : heap.find(id));
      });
    }
  }
  return result;
}

std::string_view Objects::text(const Datatype& type, ByteView element) {
  if (type.kind == Datatype::Class::vlen) {
    Cursor in(element, image_->sizes(), "a variable-length value");
    const uint32_t length = in.u32();
    const uint64_t address = in.address();
    const uint32_t index = in.u32();
    if (length == 0) return {};
    const ByteView stored = strings_.find(address, index);
    const uint64_t size = checked_mul(length, type.base->size, "a variable-length value");
    if (size > stored.size()) damaged("a text of {} bytes in {}", size, stored.size());
    return as_text(stored.first(size));
  }
  const std::string_view text = as_text(element);
  if (type.padding == 0) return text.substr(0, text.find('\0'));
  return text.substr(0, text.find_last_not_of(type.padding == 2 ? ' ' : '\0') + 1);
}

}  // namespace cbk::hdf5
