// The opcodes of Python's pickle protocols 0 to 5, and a reader that steps through them without interpreting
// anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cbk::pickle {

enum class Op : uint8_t {
  mark = '(',
  stop = '.',
  pop = '0',
  pop_mark = '1',
  dup = '2',
  float_text = 'F',
  int_text = 'I',
  binint = 'J',
  binint1 = 'K',
  long_text = 'L',
  binint2 = 'M',
  none = 'N',
  persid = 'P',
  binpersid = 'Q',
  reduce = 'R',
  string_text = 'S',
  binstring = 'T',
  short_binstring = 'U',
  unicode_text = 'V',
  binunicode = 'X',
  append = 'a',
  build = 'b',
  global = 'c',
  dict = 'd',
  empty_dict = '}',
  appends = 'e',
  get = 'g',
  binget = 'h',
  inst = 'i',
  long_binget = 'j',
  list = 'l',
  empty_list = ']',
  obj = 'o',
  put = 'p',
  binput = 'q',
  long_binput = 'r',
  setitem = 's',
  tuple = 't',
  empty_tuple = ')',
  setitems = 'u',
  binfloat = 'G',
  binbytes = 'B',
  short_binbytes = 'C',
  proto = 0x80,
  newobj = 0x81,
  ext1 = 0x82,
  ext2 = 0x83,
  ext4 = 0x84,
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  newtrue = 0x88,
  newfalse = 0x89,
  long1 = 0x8a,
  long4 = 0x8b,
  short_binunicode = 0x8c,
  binunicode8 = 0x8d,
  binbytes8 = 0x8e,
  empty_set = 0x8f,
  additems = 0x90,
  frozenset = 0x91,
  newobj_ex = 0x92,
  stack_global = 0x93,
  memoize = 0x94,
  frame = 0x95,
  bytearray8 = 0x96,
  next_buffer = 0x97,
  readonly_buffer = 0x98,
};

/// "BINGET"; empty for a byte that is not an opcode.
std::string_view name_of(Op op);

struct Instruction {
  uint64_t offset = 0;
  Op op = Op::stop;
  int64_t number = 0;       // fixed-size integers, memo indexes, a frame's length
  std::string_view text;    // counted or line arguments, as they are in the file
  std::string_view second;  // the second line of GLOBAL and INST
};

/// For people: a number, or the beginning of a text in quotes; otherwise empty.
std::string argument_text(const Instruction& instruction);

/// Steps through a pickle; every length is checked against the bytes that are left (`format` errors with the
/// offset).
class InstructionReader {
 public:
  explicit InstructionReader(std::string_view bytes) : bytes_(bytes) {}
  Instruction next();
  [[nodiscard]] size_t position() const { return position_; }
  /// Nothing: the pickle ends here.
  [[nodiscard]] std::optional<Op> next_op() const {
    return position_ < bytes_.size() ? std::optional(static_cast<Op>(bytes_[position_])) : std::nullopt;
  }

 private:
  std::string_view take(uint64_t count);
  std::string_view take_line();
  [[noreturn]] void fail_early(uint64_t count) const;

  std::string_view bytes_;
  size_t position_ = 0;
  size_t start_ = 0;  // of the instruction being read
};

}  // namespace cbk::pickle
