#include "host/formats/tensorflow/foreign.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "host/base/crc32c.hpp"

namespace cbk::tensorflow {
namespace {

constexpr std::string_view object_type = "tensorflow.tensor";
constexpr size_t checksum_size = 4;

uint64_t read_varint(ByteView bytes, size_t& position) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && position < bytes.size(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes[position++]);
    value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) return value;
  }
  fail(Errc::format, "the length of a text is damaged");
}

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
  out += static_cast<char>(value);
}

/// The checksum covers the lengths as fixed-size numbers, not as stored.
uint32_t add_length(uint32_t crc, uint64_t length, bool big_endian) {
  const auto add = [&](auto number) {
    auto bytes = std::bit_cast<std::array<std::byte, sizeof number>>(number);
    if (big_endian) std::reverse(bytes.begin(), bytes.end());
    return crc32c(bytes, crc);
  };
  if (length <= std::numeric_limits<uint32_t>::max()) return add(static_cast<uint32_t>(length));
  return add(length);
}

/// Calls `visit` for the length of each text; returns the place of their checksum.
template <typename Visit>
size_t each_length(ByteView bytes, int64_t count, Visit&& visit) {
  if (static_cast<uint64_t>(count) > bytes.size())
    fail(Errc::format, "{} texts in {} bytes", count, bytes.size());
  size_t position = 0;
  uint64_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t length = read_varint(bytes, position);
    total = checked_add(total, length, "the length of all texts");
    visit(length);
  }
  const uint64_t rest = bytes.size() - position;
  if (rest < checksum_size || rest - checksum_size != total) {
    fail(Errc::format, "texts of {} bytes where {} follow their lengths", total, rest);
  }
  return position;
}

}  // namespace

Value to_value(const ForeignTensor& tensor) {
  auto shape = std::make_shared<Sequence>();
  shape->kind = Sequence::Kind::torch_size;
  for (const int64_t extent : tensor.shape) shape->items.emplace_back(extent);
  auto object = std::make_shared<Object>();
  object->type = object_type;
  object->repr = fmt::format("{} {}", tensor.dtype->name, to_string(tensor.shape));
  object->state = Value::dict();
  object->state.as_dict().set("dtype", tensor.dtype->name);
  object->state.as_dict().set("shape", std::move(shape));
  object->state.as_dict().set("elements", tensor.elements);
  return object;
}

bool is_foreign(const Value& value) {
  return value.is(Value::Kind::object) && value.as_object().type == object_type;
}

ForeignTensor to_foreign(const Value& value) {
  const Dict& state = value.as_object().state.as_dict();
  ForeignTensor out;
  out.dtype = find(state.at("dtype").as_string());
  if (out.dtype == nullptr)
    fail(Errc::value, "TensorFlow has no dtype {}", quote(state.at("dtype").as_string()));
  for (const Value& extent : state.at("shape").as_sequence().items) out.shape.push_back(extent.as_int());
  out.elements = state.at("elements").as_tensor();
  const bool fits = out.dtype->kind == DTypeInfo::Kind::string
                        ? out.elements.dtype() == DType::uint8
                        : out.dtype->kind == DTypeInfo::Kind::quantized &&
                              out.elements.dtype() == out.dtype->dtype &&
                              out.elements.numel() == numel_of(out.shape);
  if (!fits) {
    fail(Errc::value, "{} {} elements for a {} tensor of TensorFlow", out.elements.numel(),
         name_of(out.elements.dtype()), out.dtype->name);
  }
  return out;
}

std::vector<std::string_view> decode_texts(ByteView bytes, int64_t count) {
  if (count == 0 && bytes.empty()) return {};
  std::vector<uint64_t> lengths;
  lengths.reserve(std::min(static_cast<uint64_t>(count), bytes.size()));
  size_t position =
      each_length(bytes, count, [&](uint64_t length) { lengths.push_back(length); }) + checksum_size;
  std::vector<std::string_view> texts;
  texts.reserve(lengths.size());
  for (const uint64_t length : lengths) {
    texts.push_back(as_text(bytes.subspan(position, length)));
    position += length;
  }
  return texts;
}

EncodedTexts encode_texts(std::span<const std::string_view> texts) {
  EncodedTexts out;
  uint32_t crc = 0;
  for (const std::string_view text : texts) {
    append_varint(out.bytes, text.size());
    crc = add_length(crc, text.size(), false);
  }
  append_le(out.bytes, masked_crc32c(crc));
  crc = crc32c(as_bytes(out.bytes).last(checksum_size), crc);
  for (const std::string_view text : texts) {
    out.bytes += text;
    crc = crc32c(as_bytes(text), crc);
  }
  out.crc = masked_crc32c(crc);
  return out;
}

uint32_t texts_crc(ByteView bytes, int64_t count, bool big_endian) {
  uint32_t crc = 0;
  const size_t position =
      each_length(bytes, count, [&](uint64_t length) { crc = add_length(crc, length, big_endian); });
  auto of_lengths = load_le<uint32_t>(bytes.data() + position);
  if (big_endian) of_lengths = __builtin_bswap32(of_lengths);
  if (masked_crc32c(crc) != of_lengths)
    fail(Errc::format, "the lengths of its texts do not have their checksum");
  return masked_crc32c(crc32c(bytes.subspan(position), crc));
}

void verify_texts(ByteView bytes, int64_t count, uint32_t stored, bool big_endian) {
  if (count == 0 && bytes.empty()) return;
  if (texts_crc(bytes, count, big_endian) != stored)
    fail(Errc::format, "its texts do not have the checksum of the index");
}

Value for_others(const Value& root, bool holds_texts, std::vector<std::string>& left_out) {
  if (!root.is(Value::Kind::dict)) return root;
  const Dict& source = root.as_dict();
  const auto is_foreign_entry = [](const Dict::Entry& entry) { return is_foreign(entry.second); };
  if (std::none_of(source.entries().begin(), source.entries().end(), is_foreign_entry)) return root;
  auto out = std::make_shared<Dict>(source.kind);
  out->attributes = source.attributes;
  out->reserve(source.size());
  std::vector<std::string> quantized;
  for (const auto& [key, value] : source.entries()) {
    const DTypeInfo* dtype = is_foreign(value) ? to_foreign(value).dtype : nullptr;
    const bool is_text = dtype != nullptr && dtype->kind == DTypeInfo::Kind::string;
    if (dtype == nullptr || (is_text && holds_texts)) {
      out->set(key, value);
    } else if (is_text) {
      left_out.push_back(key_text(key));
    } else {
      quantized.push_back(fmt::format("{} ({})", quote(key_text(key)), dtype->name));
    }
  }
  if (!quantized.empty()) {
    fail(Errc::dtype, "only TensorFlow checkpoints hold quantized tensors; leave them out (--exclude): {}",
         listed(quantized));
  }
  return out;
}

}  // namespace cbk::tensorflow
