#include "host/formats/gguf/header.hpp"

#include <algorithm>
#include <bit>

#include "host/base/error.hpp"
#include "host/base/utf8.hpp"
#include "host/value/tree_memory.hpp"

namespace cbk::gguf {
namespace {

constexpr std::string_view magic = "GGUF";
constexpr uint64_t longest_name = 65535;
constexpr uint32_t most_dims = 4;
constexpr int deepest_array = 4;
constexpr uint64_t usual_alignment = 32;

/// Arrays of up to this many texts are lists; a larger vocabulary is an object.
constexpr uint64_t few_texts = 256;
constexpr uint64_t short_texts = 16384;  // bytes in the file

/// Bytes in memory for a tensor and its part of the tree; measured.
constexpr uint64_t tensor_bytes = 1024;

enum class Kind : uint32_t {
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  float32,
  boolean,
  text,
  array,
  uint64,
  int64,
  float64,
};
constexpr uint32_t kind_count = 13;

/// The dtype of numbers; nothing for texts and arrays.
std::optional<DType> dtype_of(Kind kind) {
  constexpr std::array<DType, kind_count> dtypes = {
      DType::uint8,  DType::int8,    DType::uint16,  DType::int16,   DType::uint32,
      DType::int32,  DType::float32, DType::boolean, DType::boolean, DType::boolean,
      DType::uint64, DType::int64,   DType::float64};
  if (kind == Kind::text || kind == Kind::array) return std::nullopt;
  return dtypes.at(static_cast<size_t>(kind));
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (!decode_utf8(text, i)) return false;
  }
  return true;
}

Value text_value(std::string_view text) {
  return is_utf8(text) ? Value(text) : Value::bytes(std::string(text));
}

/// Reads fields one after the other, none of them beyond the end.
class Cursor {
 public:
  Cursor(ByteView bytes, uint64_t position, bool is_big_endian)
      : bytes_(bytes), position_(position), is_big_endian_(is_big_endian) {}

  template <typename T>
  T number() {
    T out = load_le<T>(take(sizeof(T)).data());
    if (is_big_endian_) {
      auto* begin = reinterpret_cast<std::byte*>(&out);
      std::reverse(begin, begin + sizeof(T));
    }
    return out;
  }

  std::string_view text() {
    const auto length = number<uint64_t>();
    if (length > remaining()) fail_as_cut(length);
    return as_text(take(length));
  }

  ByteView take(uint64_t count) {
    if (count > remaining()) fail_as_cut(count);
    const ByteView out = bytes_.subspan(position_, count);
    position_ += count;
    return out;
  }

  /// Fails unless `count` items of at least `least` bytes can follow.
  void expect(uint64_t count, uint64_t least, std::string_view what) const {
    if (count > remaining() / least) {
      fail(Errc::format, "it announces {} {} at byte {}, and {} bytes follow; is the file cut short?", count,
           what, position_, remaining());
    }
  }

  [[nodiscard]] uint64_t position() const { return position_; }
  [[nodiscard]] bool is_big_endian() const { return is_big_endian_; }

 private:
  [[nodiscard]] uint64_t remaining() const { return bytes_.size() - position_; }
  [[noreturn]] void fail_as_cut(uint64_t wanted) const {
    fail(Errc::format, "the header needs {} bytes at byte {}, and {} follow; is the file cut short?", wanted,
         position_, remaining());
  }

  ByteView bytes_;
  uint64_t position_;
  bool is_big_endian_;
};

class HeaderReader {
 public:
  HeaderReader(const std::shared_ptr<const MappedFile>& file, MemoryBudget& memory)
      : file_(file), memory_(memory), cursor_(start(*file)) {}

  Header run() {
    header_.is_big_endian = cursor_.is_big_endian();
    header_.version = cursor_.number<uint32_t>();
    if (header_.version != 2 && header_.version != 3) {
      fail(Errc::unsupported, "version {} of GGUF is not read; known are 2 and 3", header_.version);
    }
    const auto tensor_count = cursor_.number<uint64_t>();
    const auto value_count = cursor_.number<uint64_t>();
    header_.metadata = Value::dict();
    cursor_.expect(value_count, 13, "metadata values");
    for (uint64_t i = 0; i < value_count; ++i) read_pair();
    cursor_.expect(tensor_count, 24, "tensors");
    memory_.charge(tensor_count * tensor_bytes);
    header_.tensors.reserve(tensor_count);
    for (uint64_t i = 0; i < tensor_count; ++i) read_tensor();
    place_tensors();
    return std::move(header_);
  }

 private:
  /// In a big-endian file, the low half of the version looks like 0.
  static Cursor start(const MappedFile& file) {
    const ByteView version = file.slice(magic.size(), sizeof(uint32_t), "the version of the GGUF file");
    return {file.bytes(), magic.size(), load_le<uint16_t>(version.data()) == 0};
  }

  void read_pair() {
    const std::string_view key = cursor_.text();
    if (key.size() > longest_name)
      fail(Errc::format, "a metadata key of {} bytes; {} are allowed", key.size(), longest_name);
    if (!is_utf8(key)) fail(Errc::format, "the metadata key {} is not text", quote(key));
    memory_.charge(TreeMemory::entry + TreeMemory::beside(key));
    Dict& values = header_.metadata.as_dict();
    if (values.find(key) != nullptr) fail(Errc::format, "the metadata key {} occurs twice", quote(key));
    values.set(key,
               within([&] { return "metadata " + quote(key); }, [&] { return read_value(read_kind(), 0); }));
  }

  Kind read_kind() {
    const auto number = cursor_.number<uint32_t>();
    if (number >= kind_count) fail(Errc::format, "{} is not a type of metadata", number);
    return static_cast<Kind>(number);
  }

  Value read_value(Kind kind, int depth) {
    switch (kind) {
      case Kind::uint8:
        return int64_t{cursor_.number<uint8_t>()};
      case Kind::int8:
        return int64_t{cursor_.number<int8_t>()};
      case Kind::uint16:
        return int64_t{cursor_.number<uint16_t>()};
      case Kind::int16:
        return int64_t{cursor_.number<int16_t>()};
      case Kind::uint32:
        return int64_t{cursor_.number<uint32_t>()};
      case Kind::int32:
        return int64_t{cursor_.number<int32_t>()};
      case Kind::uint64:
        return Value::integer(std::to_string(cursor_.number<uint64_t>()));
      case Kind::int64:
        return cursor_.number<int64_t>();
      case Kind::float32:
        return double{std::bit_cast<float>(cursor_.number<uint32_t>())};
      case Kind::float64:
        return std::bit_cast<double>(cursor_.number<uint64_t>());
      case Kind::boolean:
        return read_boolean();
      case Kind::text:
        return read_text();
      case Kind::array:
        return read_array(depth);
    }
    fail(Errc::internal, "a type of metadata");
  }

  Value read_boolean() {
    const auto number = cursor_.number<uint8_t>();
    if (number > 1) fail(Errc::format, "a bool is {}, not 0 or 1", number);
    return number == 1;
  }

  Value read_text() {
    const std::string_view text = cursor_.text();
    memory_.charge(TreeMemory::beside(text));
    return text_value(text);
  }

  Value read_array(int depth) {
    if (depth == deepest_array) fail(Errc::format, "arrays nested deeper than {} levels", deepest_array);
    const Kind kind = read_kind();
    const auto count = cursor_.number<uint64_t>();
    if (const auto dtype = dtype_of(kind)) return read_numbers(*dtype, count);
    if (kind == Kind::text) return read_texts(count);
    cursor_.expect(count, 12, "arrays");
    memory_.charge(TreeMemory::container + count * TreeMemory::item);
    Value list = Value::list();
    for (uint64_t i = 0; i < count; ++i) list.as_sequence().items.push_back(read_array(depth + 1));
    return list;
  }

  Value read_numbers(DType dtype, uint64_t count) {
    cursor_.expect(count, size_of(dtype), "numbers");
    const uint64_t size = count * size_of(dtype);
    StoragePtr numbers = map_storage(file_, cursor_.position(), size);
    cursor_.take(size);
    memory_.charge(tensor_bytes);
    if (cursor_.is_big_endian() && size_of(dtype) > 1)
      numbers = swapped_storage(std::move(numbers), size_of(dtype));
    return Tensor::from_view({std::move(numbers), dtype, 0, {static_cast<int64_t>(count)}, {1}});
  }

  Value read_texts(uint64_t count) {
    cursor_.expect(count, 8, "texts");
    Cursor texts = cursor_;
    for (uint64_t i = 0; i < count; ++i) cursor_.text();
    const uint64_t size = cursor_.position() - texts.position();
    memory_.charge(tensor_bytes);
    if (count > few_texts || size > short_texts) return vocabulary(count, texts.position(), size);
    memory_.charge(count * (TreeMemory::item + sizeof(std::string)) + size);
    Value list = Value::list();
    for (uint64_t i = 0; i < count; ++i) list.as_sequence().items.push_back(text_value(texts.text()));
    return list;
  }

  /// Many texts; they stay in the file.
  Value vocabulary(uint64_t count, uint64_t offset, uint64_t size) {
    Value state = Value::dict();
    state.as_dict().set("count", static_cast<int64_t>(count));
    state.as_dict().set("big_endian", cursor_.is_big_endian());
    state.as_dict().set(
        "bytes", Tensor::from_view(
                     {map_storage(file_, offset, size), DType::uint8, 0, {static_cast<int64_t>(size)}, {1}}));
    return std::make_shared<Object>(Object{std::string(texts_type), fmt::format("{} texts", count), state});
  }

  void read_tensor() {
    TensorInfo info;
    info.name = cursor_.text();
    if (info.name.size() > longest_name || !is_utf8(info.name))
      fail(Errc::format, "the tensor name {} is too long or not text", quote(info.name));
    memory_.charge(TreeMemory::beside(info.name));
    within([&] { return "tensor " + quote(info.name); }, [&] { read_tensor_into(info); });
    header_.tensors.push_back(std::move(info));
  }

  void read_tensor_into(TensorInfo& info) {
    const auto dims = cursor_.number<uint32_t>();
    if (dims > most_dims) fail(Errc::format, "{} dims; {} are allowed", dims, most_dims);
    uint64_t count = 1;
    for (uint32_t i = 0; i < dims; ++i) {
      const auto extent = cursor_.number<uint64_t>();
      if (extent > INT64_MAX) fail(Errc::format, "an extent of {}", extent);
      count = checked_mul(count, extent, "the number of elements");
      info.shape.insert(info.shape.begin(), static_cast<int64_t>(extent));
    }
    (void)numel_of(info.shape);  // its limit holds here, too
    info.type_number = cursor_.number<uint32_t>();
    info.type = find_type(info.type_number);
    info.offset = cursor_.number<uint64_t>();
    if (info.type == nullptr) return;
    const auto row = info.shape.empty() ? uint64_t{1} : static_cast<uint64_t>(info.shape.back());
    if (row % info.type->block_elements != 0) {
      fail(Errc::format, "rows of {} elements are no whole blocks of {}, as {} has them", row,
           info.type->block_elements, info.type->name);
    }
    info.size = checked_mul(count / info.type->block_elements, info.type->block_bytes, "a tensor");
  }

  /// Converts offsets after the header to offsets in the file.
  void place_tensors() {
    uint64_t alignment = usual_alignment;
    if (const Value* said = header_.metadata.find("general.alignment")) {
      const int64_t number = said->is(Value::Kind::integer) && said->as_integer().fits ? said->as_int() : 0;
      if (number < 8 || number > (1 << 20) || !std::has_single_bit(static_cast<uint64_t>(number)))
        fail(Errc::format, "'general.alignment' is not a power of two from 8 to 2^20");
      alignment = static_cast<uint64_t>(number);
    }
    header_.alignment = alignment;
    header_.data_start = align_up(cursor_.position(), alignment);
    std::vector<const TensorInfo*> order;
    order.reserve(header_.tensors.size());
    for (TensorInfo& info : header_.tensors) {
      if (info.offset % alignment != 0) {
        fail(Errc::format, "tensor {} is at byte {} of the data, which is no multiple of {}",
             quote(info.name), info.offset, alignment);
      }
      info.offset = checked_add(info.offset, header_.data_start, "a tensor's offset");
      (void)checked_add(info.offset, info.size, "a tensor's end");
      if (info.size > 0) order.push_back(&info);
    }
    std::ranges::sort(order, {}, &TensorInfo::offset);
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i - 1]->offset + order[i - 1]->size > order[i]->offset)
        fail(Errc::format, "tensors {} and {} overlap", quote(order[i - 1]->name), quote(order[i]->name));
    }
  }

  std::shared_ptr<const MappedFile> file_;
  MemoryBudget& memory_;
  Cursor cursor_;
  Header header_;
};

}  // namespace

bool looks_like_gguf(ByteView head) {
  return as_text(head).starts_with(magic);
}

Header read_header(const std::shared_ptr<const MappedFile>& file, MemoryBudget& memory) {
  return HeaderReader(file, memory).run();
}

std::vector<std::string> texts_of(const Object& object) {
  const Dict& state = object.state.as_dict();
  const Bytes bytes = state.at("bytes").as_tensor().to_bytes();
  Cursor cursor(bytes, 0, state.at("big_endian").as_bool());
  std::vector<std::string> out;
  out.reserve(static_cast<size_t>(state.at("count").as_int()));
  for (int64_t i = 0; i < state.at("count").as_int(); ++i) out.emplace_back(cursor.text());
  return out;
}

}  // namespace cbk::gguf
