#include "host/formats/safetensors/header.hpp"

#include <algorithm>

#include "host/value/json.hpp"
#include "host/value/kind.hpp"

namespace cbk::safetensors {
namespace {

constexpr uint64_t max_header = 100'000'000;
constexpr uint64_t length_size = 8;

std::string_view header_text(const MappedFile& file) {
  const ByteView length_bytes = file.slice(0, length_size, "the length of the header");
  const auto length = load_le<uint64_t>(length_bytes.data());
  if (length > max_header) {
    fail(Errc::format, "the header should have {} bytes; at most {} are allowed", length, max_header);
  }
  const std::string_view text = as_text(file.slice(length_size, length, "the header"));
  if (!text.starts_with('{')) fail(Errc::format, "the header does not begin with '{{'");
  return text;
}

uint64_t whole_number(const Value& value, std::string_view what) {
  const bool is_whole = value.is(Value::Kind::integer) && value.as_integer().fits && value.as_int() >= 0;
  if (!is_whole) fail(Errc::format, "{} is not a whole number below 2^63", what);
  return static_cast<uint64_t>(value.as_int());
}

const Value& member(const Value& info, std::string_view name, Value::Kind kind) {
  const Value* value = info.find(name);
  if (value == nullptr) fail(Errc::format, "'{}' is missing", name);
  if (!value->is(kind)) fail(Errc::format, "'{}' is {}", name, a_kind(*value));
  return *value;
}

Shape read_shape(const Value& value) {
  Shape shape;
  for (const Value& extent : value.as_sequence().items) {
    shape.push_back(static_cast<int64_t>(whole_number(extent, "an extent of 'shape'")));
  }
  return shape;
}

/// Bytes of all elements, in the order of multiplication of the reference: an overflow is an error even
/// beside a 0.
uint64_t size_in_bytes(const Shape& shape, uint32_t bits) {
  uint64_t count = 1;
  for (int64_t extent : shape)
    count = checked_mul(count, static_cast<uint64_t>(extent), "the number of elements");
  const uint64_t total = checked_mul(count, bits, "the number of bits");
  if (total % 8 != 0) fail(Errc::format, "{} elements of {} bits do not fill whole bytes", count, bits);
  return total / 8;
}

Entry read_entry(const std::string& name, const Value& info) {
  if (!info.is(Value::Kind::dict)) fail(Errc::format, "{} where a tensor is described", a_kind(info));
  Entry entry;
  entry.name = name;
  const std::string& dtype = member(info, "dtype", Value::Kind::string).as_string();
  entry.dtype = find(dtype);
  if (entry.dtype == nullptr) fail(Errc::format, "unknown dtype {}", quote(dtype, 40));
  entry.shape = read_shape(member(info, "shape", Value::Kind::sequence));
  const auto& offsets = member(info, "data_offsets", Value::Kind::sequence).as_sequence().items;
  if (offsets.size() != 2) fail(Errc::format, "'data_offsets' has {} numbers", offsets.size());
  entry.begin = whole_number(offsets[0], "the start in 'data_offsets'");
  entry.end = whole_number(offsets[1], "the end in 'data_offsets'");
  const uint64_t size = size_in_bytes(entry.shape, entry.dtype->bits);
  if (entry.end < entry.begin || entry.end - entry.begin != size) {
    fail(Errc::format, "'data_offsets' [{}, {}] do not fit its {} bytes ({}, {} dimensions)", entry.begin,
         entry.end, size, entry.dtype->name, entry.shape.size());
  }
  return entry;
}

Value read_metadata(const Value& value) {
  if (value.is_none()) return {};
  if (!value.is(Value::Kind::dict)) fail(Errc::format, "'__metadata__' is {}", a_kind(value));
  for (const auto& [key, text] : value.as_dict().entries()) {
    if (!text.is(Value::Kind::string)) {
      fail(Errc::format, "'__metadata__': {} is {}; only text is allowed", quote(key_text(key)),
           a_kind(text));
    }
  }
  return value;
}

/// The tensors must fill the data without holes or overlap.
void check_spans(const std::vector<Entry>& entries, uint64_t data_size, bool may_be_cut) {
  std::vector<const Entry*> order;
  order.reserve(entries.size());
  for (const Entry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t position = 0;
  for (const Entry* entry : order) {
    if (entry->end > data_size && !may_be_cut) {
      fail(Errc::format,
           "tensor {} should end at byte {} of the data, but there are {}; is the file cut short?",
           quote(entry->name), entry->end, data_size);
    }
    if (entry->begin != position) {
      fail(Errc::format, "tensor {} starts at byte {} of the data, where {} was expected: {}",
           quote(entry->name), entry->begin, position,
           entry->begin < position ? "it overlaps another one" : "a hole");
    }
    position = entry->end;
  }
  if (position != data_size && !may_be_cut)
    fail(Errc::format, "{} bytes follow the last tensor", data_size - position);
}

}  // namespace

Header read_header(const MappedFile& file, bool may_be_cut) {
  const std::string_view text = header_text(file);
  Header header;
  header.data_start = length_size + text.size();
  const auto add = [&](const std::string& name, const Value& value) {
    if (name == "__metadata__") {
      header.metadata = read_metadata(value);
    } else {
      header.entries.push_back(
          within([&] { return "tensor " + quote(name); }, [&] { return read_entry(name, value); }));
    }
  };
  JsonReadOptions options;
  options.reject_duplicates = true;
  options.file_size = file.size();
  options.take_member = add;
  const Value root = within("the header", [&] { return parse_json(text, options); });
  size_t taken = 0;
  for (const auto& [key, value] : root.as_dict().entries()) {  // what was no list or object is a mistake
    const bool is_taken = taken < header.entries.size() && header.entries[taken].name == key.as_string();
    if (is_taken)
      ++taken;
    else if (!value.is_none() || key.as_string() != "__metadata__")
      add(key.as_string(), value);
  }
  check_spans(header.entries, file.size() - header.data_start, may_be_cut);
  return header;
}

std::string write_header(const std::vector<Entry>& entries, const Value& metadata) {
  JsonWriteOptions compact;
  compact.spaced = false;
  std::string json = "{";
  if (!metadata.is_none()) json += "\"__metadata__\":" + to_json(metadata, compact);
  for (const Entry& entry : entries) {
    if (json.size() > 1) json += ',';
    json += json_quote(entry.name);
    json += fmt::format(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", entry.dtype->name,
                        fmt::join(entry.shape, ","), entry.begin, entry.end);
  }
  json += '}';
  json.resize(align_up(json.size(), 8), ' ');
  // The file begins with this length: pickles begin with 0x80, so readers that guess the format would take it
  // for one.
  if (json.size() % 256 == 0x80) json.append(8, ' ');
  if (json.size() > max_header) {
    fail(Errc::value, "a header of {} bytes; at most {} are allowed", json.size(), max_header);
  }
  std::string out;
  append_le<uint64_t>(out, json.size());
  return out + json;
}

}  // namespace cbk::safetensors
