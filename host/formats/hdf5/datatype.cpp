#include "host/formats/hdf5/datatype.hpp"

namespace cbk::hdf5 {
namespace {

using Class = Datatype::Class;

struct Head {
  uint8_t version = 0;
  uint32_t flags = 0;
};

void read_real(Cursor& in, Datatype& type, uint32_t flags) {
  type.big_endian = (flags & 1) != 0;
  const uint16_t offset = in.u16();
  const uint16_t precision = in.u16();
  const uint8_t exponent_at = in.u8();
  type.exponent_bits = in.u8();
  const uint8_t mantissa_at = in.u8();
  type.mantissa_bits = in.u8();
  const uint32_t bias = in.u32();
  struct Known {
    uint32_t size, exponent, mantissa, bias;
    bool bfloat;
  };
  constexpr Known known[] = {
      {2, 5, 10, 15, false}, {2, 8, 7, 127, true}, {4, 8, 23, 127, false}, {8, 11, 52, 1023, false}};
  type.is_plain = false;
  for (const Known& k : known) {
    if (type.size != k.size || type.exponent_bits != k.exponent || type.mantissa_bits != k.mantissa ||
        bias != k.bias)
      continue;
    type.is_plain = offset == 0 && precision == 8 * k.size && mantissa_at == 0 && exponent_at == k.mantissa &&
                    (flags & 0x40) == 0;
    type.is_bfloat = k.bfloat;
  }
}

std::string read_padded_name(Cursor& in, bool padded) {
  const uint64_t start = in.position();
  std::string name(in.text());
  if (padded) in.skip(align_up(in.position() - start, 8) - (in.position() - start));
  return name;
}

void read_compound(Cursor& in, Datatype& type, Head head, int depth) {
  const uint32_t count = head.flags & 0xFFFF;
  const unsigned offset_bytes = type.size <= 0xFF       ? 1
                                : type.size <= 0xFFFF   ? 2
                                : type.size <= 0xFFFFFF ? 3
                                                        : 4;
  for (uint32_t i = 0; i < count; ++i) {
    Datatype::Member member;
    member.name = read_padded_name(in, head.version < 3);
    member.offset = static_cast<uint32_t>(in.number(head.version < 3 ? 4 : offset_bytes));
    uint64_t repeats = 1;
    if (head.version == 1) {
      const uint8_t rank = in.u8();
      if (rank > 4) damaged("a compound member of rank {}", rank);
      in.skip(3 + 4 + 4);
      for (int d = 0; d < 4; ++d) {
        const uint32_t extent = in.u32();
        if (d < rank) repeats *= extent;
      }
    }
    Datatype inner = read_datatype(in, depth + 1);
    if (uint64_t{member.offset} + inner.size * repeats > type.size)
      damaged("a compound member outside its element");
    if (repeats != 1) type.is_plain = false;
    member.type = std::make_shared<const Datatype>(std::move(inner));
    type.members.push_back(std::move(member));
  }
}

void read_enumeration(Cursor& in, Datatype& type, Head head, int depth) {
  const uint32_t count = head.flags & 0xFFFF;
  type.base = std::make_shared<const Datatype>(read_datatype(in, depth + 1));
  if (type.base->kind != Class::integer || type.base->size > 8 || type.base->size != type.size) {
    damaged("an enumeration that is not over integers");
  }
  for (uint32_t i = 0; i < count; ++i) type.names.push_back(read_padded_name(in, head.version < 3));
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t value = in.number(type.size);
    if (type.base->is_signed && type.size < 8 && (value >> (8 * type.size - 1)) != 0)
      value |= UINT64_MAX << (8 * type.size);
    type.values.push_back(static_cast<int64_t>(value));
  }
}

void read_array(Cursor& in, Datatype& type, Head head, int depth) {
  const uint8_t rank = in.u8();
  if (head.version < 3) in.skip(3);
  if (rank > 32) damaged("an array type of rank {}", rank);
  for (int d = 0; d < rank; ++d) type.count = checked_mul(type.count, in.u32(), "an array type");
  if (head.version < 3) in.skip(uint64_t{4} * rank);
  type.base = std::make_shared<const Datatype>(read_datatype(in, depth + 1));
  if (checked_mul(type.count, type.base->size, "an array type") != type.size)
    damaged("an array type of the wrong size");
}

bool is_bool(const Datatype& type) {
  return type.kind == Class::enumeration && type.size == 1 && type.names.size() == 2 &&
         ((type.names[0] == "FALSE" && type.values[0] == 0 && type.names[1] == "TRUE" &&
           type.values[1] == 1) ||
          (type.names[1] == "FALSE" && type.values[1] == 0 && type.names[0] == "TRUE" &&
           type.values[0] == 1));
}

bool is_complex_pair(const Datatype& type) {
  return type.kind == Class::compound && type.is_plain && type.members.size() == 2 &&
         type.members[0].name == "r" && type.members[1].name == "i" && type.members[0].offset == 0 &&
         type.members[1].offset * 2 == type.size && type.members[0].type->kind == Class::real &&
         type.members[1].type->kind == Class::real && type.members[0].type->size * 2 == type.size &&
         type.members[1].type->size * 2 == type.size && type.members[0].type->is_plain &&
         type.members[1].type->is_plain &&
         type.members[0].type->big_endian == type.members[1].type->big_endian;
}

}  // namespace

Datatype read_datatype(Cursor& in, int depth) {
  if (depth > 8) damaged("a datatype nested too deeply");
  Datatype type;
  const uint32_t word = in.u32();
  const Head head{static_cast<uint8_t>((word >> 4) & 0xF), word >> 8};
  if ((word & 0xF) > 10) damaged("unknown datatype class {}", word & 0xF);
  if (head.version < 1 || head.version > 4) damaged("unknown datatype version {}", head.version);
  type.kind = static_cast<Class>(word & 0xF);
  type.size = in.u32();
  if (type.size == 0) damaged("a datatype without size");
  switch (type.kind) {
    case Class::integer:
    case Class::bitfield: {
      type.big_endian = (head.flags & 1) != 0;
      type.is_signed = (head.flags & 8) != 0;
      const uint16_t offset = in.u16();
      const uint16_t precision = in.u16();
      type.is_plain = offset == 0 && precision == 8 * type.size;
      break;
    }
    case Class::real:
      read_real(in, type, head.flags);
      break;
    case Class::time:
      in.skip(2);
      break;
    case Class::string:
      type.padding = head.flags & 0xF;
      break;
    case Class::opaque:
      in.skip(head.flags & 0xFF);
      break;
    case Class::compound:
      read_compound(in, type, head, depth);
      break;
    case Class::reference:
      break;
    case Class::enumeration:
      read_enumeration(in, type, head, depth);
      break;
    case Class::vlen:
      type.is_text = (head.flags & 0xF) == 1;
      type.base = std::make_shared<const Datatype>(read_datatype(in, depth + 1));
      break;
    case Class::array:
      read_array(in, type, head, depth);
      break;
  }
  return type;
}

namespace {

std::optional<DType> integer_dtype(uint32_t size, bool is_signed) {
  switch (size) {
    case 1:
      return is_signed ? DType::int8 : DType::uint8;
    case 2:
      return is_signed ? DType::int16 : DType::uint16;
    case 4:
      return is_signed ? DType::int32 : DType::uint32;
    case 8:
      return is_signed ? DType::int64 : DType::uint64;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<DType> Datatype::widened() const {
  if (kind == Class::integer || kind == Class::bitfield)
    return size > 8 ? std::nullopt : integer_dtype(std::bit_ceil(size), is_signed);
  if (kind != Class::real) return std::nullopt;
  if (exponent_bits <= 8 && mantissa_bits <= 23) return DType::float32;
  if (exponent_bits <= 11 && mantissa_bits <= 52) return DType::float64;
  return std::nullopt;
}

std::optional<DType> Datatype::dtype() const {
  if (kind == Class::enumeration) return is_bool(*this) ? DType::boolean : base->dtype();
  if (kind == Class::compound) {
    if (!is_complex_pair(*this)) return std::nullopt;
    if (size == 8) return DType::complex64;
    return size == 16 ? std::optional(DType::complex128) : std::nullopt;
  }
  if (!is_plain) return std::nullopt;
  if (kind == Class::integer || kind == Class::bitfield) return integer_dtype(size, is_signed);
  if (kind == Class::real) {
    if (size == 2) return is_bfloat ? DType::bfloat16 : DType::float16;
    return size == 4 ? DType::float32 : DType::float64;
  }
  return std::nullopt;
}

bool Datatype::is_swapped() const {
  if (kind == Class::enumeration) return base->is_swapped();
  if (kind == Class::compound) return !members.empty() && members[0].type->big_endian;
  return big_endian && size > 1;
}

uint32_t Datatype::component_size() const {
  return kind == Class::compound ? size / 2 : size;
}

bool Datatype::is_texts() const {
  if (kind != Class::vlen) return kind == Class::string;
  return is_text || (base->size == 1 && base->kind == Class::integer);
}

std::string Datatype::describe() const {
  if (auto known = dtype()) return std::string(name_of(*known));
  switch (kind) {
    case Class::string:
      return fmt::format("string({})", size);
    case Class::opaque:
      return fmt::format("opaque({})", size);
    case Class::compound:
      return "compound";
    case Class::reference:
      return "reference";
    case Class::vlen:
      return is_text ? "string" : "vlen";
    case Class::array:
      return fmt::format("{}[{}]", base->describe(), count);
    case Class::time:
      return "time";
    default:
      return fmt::format("number({})", size);
  }
}

uint64_t Dataspace::count() const {
  if (is_null) return 0;
  uint64_t total = 1;
  for (uint64_t extent : extents) total = checked_mul(total, extent, "a dataspace");
  return total;
}

Shape Dataspace::shape() const {
  Shape result;
  result.reserve(extents.size());
  for (uint64_t extent : extents) {
    if (extent > INT64_MAX) damaged("an extent of {}", extent);
    result.push_back(static_cast<int64_t>(extent));
  }
  return result;
}

Dataspace read_dataspace(Cursor& in) {
  Dataspace space;
  const uint8_t version = in.u8();
  const uint8_t rank = in.u8();
  const bool has_limits = (in.u8() & 1) != 0;
  if (version == 1) {
    in.skip(5);
  } else if (version == 2) {
    const uint8_t kind = in.u8();
    if (kind > 2) damaged("unknown dataspace class {}", kind);
    space.is_null = kind == 2;
  } else {
    damaged("unknown dataspace version {}", version);
  }
  if (rank > 32) damaged("a dataspace of rank {}", rank);
  for (int d = 0; d < rank; ++d) space.extents.push_back(in.length());
  for (int d = 0; has_limits && d < rank; ++d) {
    const uint64_t extent = space.extents[static_cast<size_t>(d)];
    space.limits.push_back(in.length());
    if (extent > space.limits.back())
      damaged("an extent of {}, which can be at most {}", extent, space.limits.back());
  }
  return space;
}

}  // namespace cbk::hdf5
