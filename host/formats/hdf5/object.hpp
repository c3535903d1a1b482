// Object headers: the messages that describe a group or a dataset, and the attributes among them.
#pragma once

#include <vector>

#include "host/formats/hdf5/datatype.hpp"
#include "host/formats/hdf5/heap.hpp"

namespace cbk::hdf5 {

enum class MessageType : uint16_t {
  dataspace = 0x01,
  link_info = 0x02,
  datatype = 0x03,
  old_fill_value = 0x04,
  fill_value = 0x05,
  link = 0x06,
  external_files = 0x07,
  layout = 0x08,
  group_info = 0x0A,
  filters = 0x0B,
  attribute = 0x0C,
  shared_table = 0x0F,
  continuation = 0x10,
  symbol_table = 0x11,
  tree_ranks = 0x13,
  attribute_info = 0x15,
  references = 0x16,
  file_space = 0x17,
  cache_image = 0x18,
};

struct Message {
  MessageType type;
  bool shared = false;  // the content is elsewhere: Objects::content
  ByteView body;
  uint8_t flags = 0;
};

struct Attribute {
  std::string_view name;
  Datatype type;
  Dataspace space;
  ByteView data;
  ByteView body;  // all of it, as it is stored
};

/// A parsed object header; the views point into the mapped file.
struct ObjectHeader {
  uint64_t address = 0;
  uint8_t version = 1;
  uint32_t references = 1;  // hard links to this object, if the file counts right
  std::vector<Message> messages;

  [[nodiscard]] const Message* find(MessageType type) const;
  /// Whether this is a group, old or new style.
  [[nodiscard]] bool is_group() const;
  /// Whether this is a dataset, or what damage left of one: it has a message that only datasets have.
  [[nodiscard]] bool is_dataset() const;
  /// A datatype with a name (a committed one), for datasets to refer to.
  [[nodiscard]] bool is_datatype() const {
    return !is_group() && !is_dataset() && find(MessageType::datatype) != nullptr;
  }
};

/// Reads the objects of one file. Not thread-safe: it caches heaps.
class Objects {
 public:
  explicit Objects(std::shared_ptr<const Image> image) : image_(std::move(image)), strings_(*image_) {}

  [[nodiscard]] const Image& image() const { return *image_; }
  [[nodiscard]] const std::shared_ptr<const Image>& shared_image() const { return image_; }
  [[nodiscard]] ObjectHeader read(uint64_t address) const;
  /// All attributes, from all kinds of storage, in the order of the file.
  [[nodiscard]] std::vector<Attribute> attributes(const ObjectHeader& object) const;
  /// The content of a message, even if it is in another object or in the file's table of shared messages.
  [[nodiscard]] ByteView content(const Message& message) const;
  /// The datatype of a dataset, even if it is a committed one.
  [[nodiscard]] Datatype datatype(const Message& message) const;
  /// The bytes of one element that is a string, or a sequence of bytes.
  [[nodiscard]] std::string_view text(const Datatype& type, ByteView element);

 private:
  [[nodiscard]] Attribute attribute(ByteView body) const;
  [[nodiscard]] ByteView in_shared_table(MessageType type, ByteView heap_id) const;
  std::shared_ptr<const Image> image_;
  GlobalHeap strings_;
};

}  // namespace cbk::hdf5
