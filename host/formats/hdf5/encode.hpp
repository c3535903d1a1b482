// HDF5's encodings of types, shapes and messages, as h5py writes them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "host/formats/hdf5/filters.hpp"
#include "host/formats/hdf5/object.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk::hdf5 {

/// The message body of a dtype. bfloat16 is kept in int16. Errors: `dtype` for the 8-bit floats.
std::string encode_datatype(DType dtype);
std::string encode_opaque(uint32_t size);
/// A variable-length UTF-8 string.
std::string_view text_datatype();
/// The type of a dataset of such texts: UTF-8 or plain strings, or sequences of bytes where a string would
/// end too early.
std::string texts_datatype(std::span<const std::string_view> texts);

std::string encode_dataspace(const Shape& shape);
std::string_view scalar_dataspace();
std::string_view null_dataspace();

/// A fill value of zeros, written only when asked for.
std::string_view default_fill_value();
std::string encode_contiguous(uint64_t address, uint64_t size);
/// `chunk`: its extents, then the size of an element.
std::string encode_chunked(uint64_t tree, std::span<const uint32_t> chunk);
std::string encode_filters(std::span<const Filter> filters);
std::string encode_symbol_table(uint64_t tree, uint64_t heap);
std::string encode_compact(std::string_view data);

/// An attribute as HDF5 stores it, version 1 of the message.
std::string encode_attribute(std::string_view name, std::string_view type, std::string_view space,
                             std::string_view data);

/// The message body of an external link.
std::string encode_external_link(std::string_view name, std::string_view file, std::string_view path);
std::string encode_hard_link(std::string_view name, uint64_t object);
std::string encode_soft_link(std::string_view name, std::string_view path);

/// Collects the messages of one object.
class HeaderBuilder {
 public:
  /// `flags`: as HDF5 stores them with the message. Errors: `value` for a body too large for a message.
  void add(MessageType type, std::string_view body, uint8_t flags = 0);
  void add_attribute(std::string_view name, std::string_view type, std::string_view space,
                     std::string_view data);
  /// Whether an attribute of this size fits a message.
  static bool fits(uint64_t data_size) { return data_size <= 64000; }
  /// Version 2 from the start; otherwise only if there are more messages than version 1 can count.
  void use_version_2() { is_version_2_ = true; }
  /// The number of hard links to the object (default: 1).
  void set_references(uint32_t count) { references_ = count; }
  /// The whole header; call once, at the end.
  [[nodiscard]] std::string finish();

 private:
  struct Part {
    MessageType type;
    uint32_t begin = 0;
    uint32_t size = 0;
    uint8_t flags = 0;
  };
  std::string bodies_;  // each padded to 8 bytes
  std::vector<Part> parts_;
  uint32_t references_ = 1;
  bool is_version_2_ = false;
};

}  // namespace cbk::hdf5
