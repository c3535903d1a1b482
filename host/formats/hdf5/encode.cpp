#include "host/formats/hdf5/encode.hpp"

#include <algorithm>

#include "host/base/utf8.hpp"

namespace cbk::hdf5 {
namespace {

using namespace std::string_view_literals;

void pad8(std::string& out) {
  out.resize(align_up(out.size(), 8), '\0');
}

/// Appends class and version, three bytes of flags, and the size.
void append_head(std::string& out, Datatype::Class kind, uint32_t flags, uint32_t size) {
  append_le<uint32_t>(out, flags << 8 | 0x10U | static_cast<uint32_t>(kind));
  append_le<uint32_t>(out, size);
}

std::string encode_integer(uint32_t size, bool is_signed) {
  std::string out;
  append_head(out, Datatype::Class::integer, is_signed ? 8 : 0, size);
  append_le<uint16_t>(out, 0);
  append_le<uint16_t>(out, static_cast<uint16_t>(8 * size));
  return out;
}

std::string encode_real(uint32_t size, uint8_t exponent_bits, uint8_t mantissa_bits, uint32_t bias) {
  std::string out;
  const uint32_t sign_at = 8 * size - 1;
  append_head(out, Datatype::Class::real, 0x20 | sign_at << 8, size);  // the leading 1 is implied
  append_le<uint16_t>(out, 0);
  append_le<uint16_t>(out, static_cast<uint16_t>(8 * size));
  append_le<uint8_t>(out, mantissa_bits);
  append_le<uint8_t>(out, exponent_bits);
  append_le<uint8_t>(out, 0);
  append_le<uint8_t>(out, mantissa_bits);
  append_le<uint32_t>(out, bias);
  return out;
}

std::string encode_bool() {
  std::string out;
  append_head(out, Datatype::Class::enumeration, 2, 1);
  out += encode_integer(1, true);
  out += "FALSE\0\0\0TRUE\0\0\0\0\0\1"sv;
  return out;
}

std::string encode_complex(uint32_t size) {
  const std::string part = encode_datatype(size == 8 ? DType::float32 : DType::float64);
  std::string out;
  append_head(out, Datatype::Class::compound, 2, size);
  for (uint32_t i = 0; i < 2; ++i) {
    out += i == 0 ? "r\0\0\0\0\0\0\0"sv : "i\0\0\0\0\0\0\0"sv;
    append_le<uint32_t>(out, i * size / 2);
    out.append(28, '\0');  // no dimensions of its own
    out += part;
  }
  return out;
}

}  // namespace

std::string encode_datatype(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return encode_bool();
    case DType::uint8:
    case DType::uint16:
    case DType::uint32:
    case DType::uint64:
      return encode_integer(size_of(dtype), false);
    case DType::int8:
    case DType::int16:
    case DType::int32:
    case DType::int64:
      return encode_integer(size_of(dtype), true);
    case DType::bfloat16:
      return encode_integer(2, true);
    case DType::float16:
      return encode_real(2, 5, 10, 15);
    case DType::float32:
      return encode_real(4, 8, 23, 127);
    case DType::float64:
      return encode_real(8, 11, 52, 1023);
    case DType::complex64:
    case DType::complex128:
      return encode_complex(size_of(dtype));
    default:
      fail(Errc::dtype, "HDF5 has no type for {}", name_of(dtype));
  }
}

std::string encode_opaque(uint32_t size) {
  std::string out;
  append_head(out, Datatype::Class::opaque, 0, size);
  return out;
}

namespace {

constexpr uint32_t utf8_strings = 0x101;
constexpr uint32_t plain_strings = 1;
constexpr uint32_t sequences = 0;

std::string encode_texts(uint32_t flags) {
  std::string out;
  append_head(out, Datatype::Class::vlen, flags, 16);
  return out + encode_integer(1, false);
}

}  // namespace

std::string_view text_datatype() {
  static const std::string type = encode_texts(utf8_strings);
  return type;
}

std::string texts_datatype(std::span<const std::string_view> texts) {
  const auto has_zero = [](std::string_view text) { return text.find('\0') != std::string_view::npos; };
  if (std::any_of(texts.begin(), texts.end(), has_zero)) return encode_texts(sequences);
  return encode_texts(std::all_of(texts.begin(), texts.end(), is_strict_utf8) ? utf8_strings : plain_strings);
}

std::string encode_dataspace(const Shape& shape) {
  std::string out;
  append_le<uint8_t>(out, 1);
  append_le<uint8_t>(out, static_cast<uint8_t>(shape.size()));
  out.append(6, '\0');
  for (const int64_t extent : shape) append_le<int64_t>(out, extent);
  return out;
}

std::string_view scalar_dataspace() {
  return "\1\0\0\0\0\0\0\0"sv;
}

std::string_view null_dataspace() {
  return "\2\0\0\2"sv;
}

std::string_view default_fill_value() {
  return "\2\2\2\1\0\0\0\0"sv;
}

std::string encode_contiguous(uint64_t address, uint64_t size) {
  std::string out("\3\1"sv);
  append_le(out, address);
  append_le(out, size);
  return out;
}

std::string encode_chunked(uint64_t tree, std::span<const uint32_t> chunk) {
  std::string out("\3\2"sv);
  append_le(out, static_cast<uint8_t>(chunk.size()));
  append_le(out, tree);
  for (const uint32_t extent : chunk) append_le(out, extent);
  return out;
}

std::string encode_filters(std::span<const Filter> filters) {
  std::string out("\1"sv);
  append_le(out, static_cast<uint8_t>(filters.size()));
  out.append(6, '\0');
  for (const Filter& filter : filters) {
    append_le(out, filter.id);
    append_le<uint16_t>(out, 0);  // no name
    append_le<uint16_t>(out, filter.optional ? 1 : 0);
    append_le(out, static_cast<uint16_t>(filter.values.size()));
    for (const uint32_t value : filter.values) append_le(out, value);
    if (filter.values.size() % 2 != 0) append_le<uint32_t>(out, 0);
  }
  return out;
}

std::string encode_symbol_table(uint64_t tree, uint64_t heap) {
  std::string out;
  append_le(out, tree);
  append_le(out, heap);
  return out;
}

std::string encode_compact(std::string_view data) {
  std::string out("\3\0"sv);
  append_le(out, static_cast<uint16_t>(data.size()));
  out += data;
  return out;
}

namespace {

void append_attribute(std::string& out, std::string_view name, std::string_view type, std::string_view space,
                      std::string_view data) {
  append_le<uint16_t>(out, 1);
  append_le<uint16_t>(out, static_cast<uint16_t>(name.size() + 1));
  append_le<uint16_t>(out, static_cast<uint16_t>(type.size()));
  append_le<uint16_t>(out, static_cast<uint16_t>(space.size()));
  const auto field = [&](std::string_view bytes, size_t size) {
    out += bytes;
    out.append(align_up(size, 8) - bytes.size(), '\0');
  };
  field(name, name.size() + 1);
  field(type, type.size());
  field(space, space.size());
  out += data;
}

}  // namespace

std::string encode_attribute(std::string_view name, std::string_view type, std::string_view space,
                             std::string_view data) {
  std::string out;
  append_attribute(out, name, type, space, data);
  return out;
}

namespace {

/// The head of a link message: with a type unless it is a hard link, the length of the name in 4 bytes.
std::string start_link(uint8_t kind, std::string_view name) {
  std::string out;
  append_le<uint8_t>(out, 1);
  append_le<uint8_t>(out, kind == 0 ? 2 : 10);
  if (kind != 0) append_le(out, kind);
  append_le(out, static_cast<uint32_t>(name.size()));
  out += name;
  return out;
}

void append_sized(std::string& out, std::string_view bytes) {
  if (bytes.size() > UINT16_MAX) fail(Errc::value, "the link to {} is too long for HDF5", quote(bytes));
  append_le(out, static_cast<uint16_t>(bytes.size()));
  out += bytes;
}

}  // namespace

std::string encode_hard_link(std::string_view name, uint64_t object) {
  std::string out = start_link(0, name);
  append_le(out, object);
  return out;
}

std::string encode_soft_link(std::string_view name, std::string_view path) {
  std::string out = start_link(1, name);
  append_sized(out, path);
  return out;
}

std::string encode_external_link(std::string_view name, std::string_view file, std::string_view path) {
  std::string out = start_link(64, name);
  std::string value("\0"sv);
  value += file;
  value += '\0';
  value += path;
  value += '\0';
  append_sized(out, value);
  return out;
}

namespace {

constexpr size_t old_message_head = 8;
constexpr size_t new_message_head = 4;
constexpr size_t max_old_messages = 65000;
constexpr size_t max_message = 65528;

}  // namespace

void HeaderBuilder::add(MessageType type, std::string_view body, uint8_t flags) {
  const auto begin = static_cast<uint32_t>(bodies_.size());
  bodies_ += body;
  pad8(bodies_);
  const auto size = static_cast<uint32_t>(bodies_.size()) - begin;
  if (size > max_message) fail(Errc::value, "{} are too much for one HDF5 message", format_size(size));
  parts_.push_back({type, begin, size, flags});
}

void HeaderBuilder::add_attribute(std::string_view name, std::string_view type, std::string_view space,
                                  std::string_view data) {
  const auto begin = static_cast<uint32_t>(bodies_.size());
  append_attribute(bodies_, name, type, space, data);
  pad8(bodies_);
  const auto size = static_cast<uint32_t>(bodies_.size()) - begin;
  if (size > max_message) fail(Errc::value, "the key {} is too long for HDF5", quote(name));
  parts_.push_back({MessageType::attribute, begin, size});
}

std::string HeaderBuilder::finish() {
  const bool is_old = !is_version_2_ && parts_.size() <= max_old_messages;
  const bool tells_attributes = std::any_of(parts_.begin(), parts_.end(), [](const Part& part) {
    return part.type == MessageType::attribute_info;
  });
  if (!is_old && !tells_attributes) {
    // Without this message libhdf5 finds attributes by name, but counts zero in such a header.
    std::string no_dense_storage("\0\0"sv);
    append_le(no_dense_storage, undefined_address);
    append_le(no_dense_storage, undefined_address);
    add(MessageType::attribute_info, no_dense_storage);
  }
  std::string count;  // version 1 has a field for it
  if (!is_old && references_ != 1) {
    append_le(count, static_cast<uint8_t>(MessageType::references));
    append_le<uint16_t>(count, 5);
    append_le<uint16_t>(count, 0);  // flags, version
    append_le(count, references_);
  }
  const uint64_t size =
      parts_.size() * (is_old ? old_message_head : new_message_head) + bodies_.size() + count.size();
  if (size > UINT32_MAX) fail(Errc::value, "{} of attributes are too many for HDF5", format_size(size));
  std::string out;
  out.reserve(size + 20);
  if (is_old) {
    append_le<uint16_t>(out, 1);
    append_le(out, static_cast<uint16_t>(parts_.size()));
    append_le(out, references_);
    append_le(out, static_cast<uint32_t>(size));
    append_le<uint32_t>(out, 0);
  } else {
    out += "OHDR\2\2"sv;  // the size takes 4 bytes
    append_le(out, static_cast<uint32_t>(size));
  }
  for (const Part& part : parts_) {
    if (is_old) {
      append_le(out, static_cast<uint16_t>(part.type));
      append_le(out, static_cast<uint16_t>(part.size));
      append_le<uint32_t>(out, part.flags);
    } else {
      append_le(out, static_cast<uint8_t>(part.type));
      append_le(out, static_cast<uint16_t>(part.size));
      append_le(out, part.flags);
    }
    out.append(bodies_, part.begin, part.size);
  }
  if (!is_old) {
    out += count;
    append_le(out, lookup3(as_bytes(out)));
  }
  return out;
}

}  // namespace cbk::hdf5
