#include "host/formats/pickle/opcodes.hpp"

#include <array>

#include "host/base/bytes.hpp"

namespace cbk::pickle {
namespace {

enum class Form : uint8_t {
  unknown,
  none,
  u1,
  u2,
  u4,
  i4,
  u8,
  f8,
  line,
  two_lines,
  counted1,
  counted4,
  counted8
};

struct Row {
  Op op;
  std::string_view name;
  Form form;
};

constexpr std::array rows = {
    Row{Op::mark, "MARK", Form::none},
    Row{Op::stop, "STOP", Form::none},
    Row{Op::pop, "POP", Form::none},
    Row{Op::pop_mark, "POP_MARK", Form::none},
    Row{Op::dup, "DUP", Form::none},
    Row{Op::float_text, "FLOAT", Form::line},
    Row{Op::int_text, "INT", Form::line},
    Row{Op::binint, "BININT", Form::i4},
    Row{Op::binint1, "BININT1", Form::u1},
    Row{Op::long_text, "LONG", Form::line},
    Row{Op::binint2, "BININT2", Form::u2},
    Row{Op::none, "NONE", Form::none},
    Row{Op::persid, "PERSID", Form::line},
    Row{Op::binpersid, "BINPERSID", Form::none},
    Row{Op::reduce, "REDUCE", Form::none},
    Row{Op::string_text, "STRING", Form::line},
    Row{Op::binstring, "BINSTRING", Form::counted4},
    Row{Op::short_binstring, "SHORT_BINSTRING", Form::counted1},
    Row{Op::unicode_text, "UNICODE", Form::line},
    Row{Op::binunicode, "BINUNICODE", Form::counted4},
    Row{Op::append, "APPEND", Form::none},
    Row{Op::build, "BUILD", Form::none},
    Row{Op::global, "GLOBAL", Form::two_lines},
    Row{Op::dict, "DICT", Form::none},
    Row{Op::empty_dict, "EMPTY_DICT", Form::none},
    Row{Op::appends, "APPENDS", Form::none},
    Row{Op::get, "GET", Form::line},
    Row{Op::binget, "BINGET", Form::u1},
    Row{Op::inst, "INST", Form::two_lines},
    Row{Op::long_binget, "LONG_BINGET", Form::u4},
    Row{Op::list, "LIST", Form::none},
    Row{Op::empty_list, "EMPTY_LIST", Form::none},
    Row{Op::obj, "OBJ", Form::none},
    Row{Op::put, "PUT", Form::line},
    Row{Op::binput, "BINPUT", Form::u1},
    Row{Op::long_binput, "LONG_BINPUT", Form::u4},
    Row{Op::setitem, "SETITEM", Form::none},
    Row{Op::tuple, "TUPLE", Form::none},
    Row{Op::empty_tuple, "EMPTY_TUPLE", Form::none},
    Row{Op::setitems, "SETITEMS", Form::none},
    Row{Op::binfloat, "BINFLOAT", Form::f8},
    Row{Op::binbytes, "BINBYTES", Form::counted4},
    Row{Op::short_binbytes, "SHORT_BINBYTES", Form::counted1},
    Row{Op::proto, "PROTO", Form::u1},
    Row{Op::newobj, "NEWOBJ", Form::none},
    Row{Op::ext1, "EXT1", Form::u1},
    Row{Op::ext2, "EXT2", Form::u2},
    Row{Op::ext4, "EXT4", Form::i4},
    Row{Op::tuple1, "TUPLE1", Form::none},
    Row{Op::tuple2, "TUPLE2", Form::none},
    Row{Op::tuple3, "TUPLE3", Form::none},
    Row{Op::newtrue, "NEWTRUE", Form::none},
    Row{Op::newfalse, "NEWFALSE", Form::none},
    Row{Op::long1, "LONG1", Form::counted1},
    Row{Op::long4, "LONG4", Form::counted4},
    Row{Op::short_binunicode, "SHORT_BINUNICODE", Form::counted1},
    Row{Op::binunicode8, "BINUNICODE8", Form::counted8},
    Row{Op::binbytes8, "BINBYTES8", Form::counted8},
    Row{Op::empty_set, "EMPTY_SET", Form::none},
    Row{Op::additems, "ADDITEMS", Form::none},
    Row{Op::frozenset, "FROZENSET", Form::none},
    Row{Op::newobj_ex, "NEWOBJ_EX", Form::none},
    Row{Op::stack_global, "STACK_GLOBAL", Form::none},
    Row{Op::memoize, "MEMOIZE", Form::none},
    Row{Op::frame, "FRAME", Form::u8},
    Row{Op::bytearray8, "BYTEARRAY8", Form::counted8},
    Row{Op::next_buffer, "NEXT_BUFFER", Form::none},
    Row{Op::readonly_buffer, "READONLY_BUFFER", Form::none},
};

struct Lookup {
  std::array<Form, 256> forms{};
  std::array<std::string_view, 256> names{};
  constexpr Lookup() {
    for (const Row& row : rows) {
      forms[static_cast<uint8_t>(row.op)] = row.form;
      names[static_cast<uint8_t>(row.op)] = row.name;
    }
  }
};
constexpr Lookup lookup;

}  // namespace

std::string_view name_of(Op op) {
  return lookup.names[static_cast<uint8_t>(op)];
}

std::string argument_text(const Instruction& instruction) {
  switch (lookup.forms[static_cast<uint8_t>(instruction.op)]) {
    case Form::u1:
    case Form::u2:
    case Form::u4:
    case Form::i4:
    case Form::u8:
      return std::to_string(instruction.number);
    case Form::f8:
      return fmt::format("{}", std::bit_cast<double>(instruction.number));
    case Form::two_lines:
      return quote(fmt::format("{} {}", instruction.text, instruction.second));
    case Form::line:
    case Form::counted1:
    case Form::counted4:
    case Form::counted8:
      return quote(instruction.text);
    default:
      return "";
  }
}

void InstructionReader::fail_early(uint64_t count) const {
  fail(Errc::format, "the pickle ends too early: {} at offset {} needs {} bytes, {} are left",
       name_of(static_cast<Op>(bytes_[start_])), start_, count, bytes_.size() - position_);
}

inline std::string_view InstructionReader::take(uint64_t count) {
  if (count > bytes_.size() - position_) fail_early(count);
  const std::string_view taken(bytes_.data() + position_, count);
  position_ += count;
  return taken;
}

std::string_view InstructionReader::take_line() {
  const size_t end = bytes_.find('\n', position_);
  if (end == std::string_view::npos) {
    fail(Errc::format, "the pickle ends too early: a line at offset {} has no end", position_);
  }
  const std::string_view line = bytes_.substr(position_, end - position_);
  position_ = end + 1;
  return line;
}

Instruction InstructionReader::next() {
  if (position_ >= bytes_.size()) fail(Errc::format, "the pickle ends without STOP");
  start_ = position_;
  const auto byte = static_cast<uint8_t>(bytes_[position_++]);
  Instruction instruction{start_, static_cast<Op>(byte), 0, {}, {}};
  switch (lookup.forms[byte]) {
    case Form::unknown:
      fail(Errc::format, "byte 0x{:02x} at offset {} of the pickle is not an opcode", byte, start_);
    case Form::none:
      break;
    case Form::u1:
      instruction.number = load_le<uint8_t>(take(1).data());
      break;
    case Form::u2:
      instruction.number = load_le<uint16_t>(take(2).data());
      break;
    case Form::u4:
      instruction.number = load_le<uint32_t>(take(4).data());
      break;
    case Form::i4:
      instruction.number = load_le<int32_t>(take(4).data());
      break;
    case Form::u8: {
      const auto length = load_le<uint64_t>(take(8).data());
      if (length > bytes_.size() - position_) {
        fail(Errc::format, "the pickle ends too early: FRAME at offset {} announces {} bytes", start_,
             length);
      }
      instruction.number = static_cast<int64_t>(length);
      break;
    }
    case Form::f8:  // big-endian, alone among pickle's numbers
      instruction.number = static_cast<int64_t>(__builtin_bswap64(load_le<uint64_t>(take(8).data())));
      break;
    case Form::line:
      instruction.text = take_line();
      break;
    case Form::two_lines:
      instruction.text = take_line();
      instruction.second = take_line();
      break;
    case Form::counted1:
      instruction.text = take(load_le<uint8_t>(take(1).data()));
      break;
    case Form::counted4:
      instruction.text = take(load_le<uint32_t>(take(4).data()));
      break;
    case Form::counted8:
      instruction.text = take(load_le<uint64_t>(take(8).data()));
      break;
  }
  return instruction;
}

}  // namespace cbk::pickle
