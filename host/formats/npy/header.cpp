#include "host/formats/npy/header.hpp"

#include <charconv>
#include <optional>

#include "host/base/bytes.hpp"
#include "host/base/error.hpp"
#include "host/formats/pickle/numpy.hpp"

namespace cbk::npy {
namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr size_t alignment = 64;
constexpr uint64_t longest_header = 1'000'000;
constexpr size_t most_dims = 64;  // as NumPy 2 has it

/// The Python literals that a header may have: texts, True and False, tuples of whole numbers.
class Literals {
 public:
  explicit Literals(std::string_view text) : text_(text) {}

  /// Consumes the mark if it comes next.
  bool take(char mark) {
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != mark) return false;
    ++at_;
    return true;
  }

  void expect(char mark) {
    if (!take(mark)) fail_here(fmt::format("'{}'", mark));
  }

  std::string_view text() {
    skip_blanks();
    const char mark = at_ < text_.size() ? text_[at_] : '\0';
    const size_t end = mark == '\'' || mark == '"' ? text_.find(mark, at_ + 1) : std::string_view::npos;
    if (end == std::string_view::npos) fail_here("a text");
    const std::string_view out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return out;
  }

  bool boolean() {
    skip_blanks();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return value;
    }
    fail_here("True or False");
  }

  Shape shape() {
    expect('(');
    Shape out;
    while (!take(')')) {
      out.push_back(whole_number());
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return out;
  }

  void expect_end() {
    skip_blanks();
    if (at_ != text_.size()) fail_here("the end");
  }

  [[noreturn]] void fail_here(std::string_view expected) const {
    fail(Errc::format, "the header has {} at byte {} where {} is expected",
         at_ < text_.size() ? quote(text_.substr(at_, 20)) : "its end", at_, expected);
  }

 private:
  void skip_blanks() { at_ = std::min(text_.find_first_not_of(" \n", at_), text_.size()); }

  int64_t whole_number() {
    skip_blanks();
    int64_t number = 0;
    const char* begin = text_.data() + at_;
    const auto [end, problem] = std::from_chars(begin, text_.data() + text_.size(), number);
    if (problem != std::errc() || number < 0) fail_here("a whole number from 0 to 2^63 - 1");
    at_ += static_cast<size_t>(end - begin);
    if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // of Python 2
    return number;
  }

  std::string_view text_;
  size_t at_ = 0;
};

struct Members {
  std::optional<std::string_view> descr;
  std::optional<bool> is_column_major;
  std::optional<Shape> shape;
};

Members read_members(std::string_view text) {
  Literals literals(text);
  Members out;
  literals.expect('{');
  while (!literals.take('}')) {
    const std::string_view name = literals.text();
    literals.expect(':');
    if (name == "descr" && !out.descr) {
      if (literals.take('['))
        fail(Errc::dtype, "its elements are records of several fields, which are not read");
      out.descr = literals.text();
    } else if (name == "fortran_order" && !out.is_column_major) {
      out.is_column_major = literals.boolean();
    } else if (name == "shape" && !out.shape) {
      out.shape = literals.shape();
    } else {
      fail(Errc::format, "the header has an unknown or second member {}", quote(name));
    }
    if (!literals.take(',')) {
      literals.expect('}');
      break;
    }
  }
  literals.expect_end();
  if (!out.descr || !out.is_column_major || !out.shape)
    fail(Errc::format, "the header lacks 'descr', 'fortran_order' or 'shape'");
  return out;
}

/// The kind of elements that no dtype supports.
std::string_view kind_of(std::string_view descr) {
  const size_t letter = descr.find_first_not_of("<>|=");
  switch (letter == std::string_view::npos ? '\0' : descr[letter]) {
    case 'M':
      return "dates";
    case 'm':
      return "times";
    case 'f':
    case 'c':
    case 'i':
    case 'u':
      return "numbers of a size that no dtype has";
    default:
      return descr.find('O') != std::string_view::npos ? "Python objects" : "texts or raw bytes";
  }
}

DType dtype_of(std::string_view descr) {
  if (pickle::is_numpy_number(descr)) return pickle::dtype_of_numpy(descr);
  fail(Errc::dtype, "its elements cannot be read: they are {} ({})", kind_of(descr), quote(descr));
}

[[noreturn]] void fail_as_cut(uint64_t wanted, uint64_t found) {
  fail(Errc::format, "the header needs {} bytes, and there are {}; is the file cut short?", wanted, found);
}

/// The beginning of the header's text: after its length, which has two bytes in version 1.
uint64_t begin_of_text(ByteView head) {
  return head[6] == std::byte{1} ? 10 : 12;
}

}  // namespace

bool looks_like_npy(ByteView head) {
  return as_text(head).starts_with(magic);
}

uint64_t size_of_header(ByteView head) {
  if (head.size() < least_header) fail_as_cut(least_header, head.size());
  if (!looks_like_npy(head)) fail(Errc::format, "it does not begin as an array file does");
  const int major = static_cast<int>(head[6]);
  const int minor = static_cast<int>(head[7]);
  if (major < 1 || major > 3 || minor != 0)
    fail(Errc::format, "version {}.{} of the format is not known; known are 1.0, 2.0 and 3.0", major, minor);
  const uint64_t length =
      major == 1 ? load_le<uint16_t>(head.data() + 8) : load_le<uint32_t>(head.data() + 8);
  if (length > longest_header)
    fail(Errc::format, "the header has {} bytes; {} are allowed", length, longest_header);
  return begin_of_text(head) + length;
}

Header read_header(ByteView file) {
  const uint64_t size = size_of_header(file);
  if (size > file.size()) fail_as_cut(size, file.size());
  const uint64_t begin = begin_of_text(file);
  Members members = read_members(as_text(file).substr(begin, size - begin));
  if (members.shape->size() > most_dims)
    fail(Errc::format, "the array has {} dims; {} are allowed", members.shape->size(), most_dims);
  Header out;
  out.dtype = dtype_of(*members.descr);
  out.is_big_endian = members.descr->starts_with('>');
  out.is_column_major = *members.is_column_major;
  out.shape = std::move(*members.shape);
  out.data_start = size;
  return out;
}

std::string write_header(DType dtype, const Shape& shape) {
  const std::string code = pickle::numpy_code(dtype);
  const char order = size_of(dtype) == 1 ? '|' : '<';
  std::string extents;
  for (const int64_t extent : shape) extents += fmt::format("{}, ", extent);
  if (shape.size() == 1) extents.pop_back();                 // (3,)
  if (shape.size() > 1) extents.resize(extents.size() - 2);  // (2, 3)
  std::string text =
      fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}), }}", order, code, extents);
  const size_t before = 10 + text.size() + 1;
  text.append((alignment - before % alignment) % alignment, ' ');
  text += '\n';
  if (text.size() > 0xffff)
    fail(Errc::value, "a shape of {} dims does not fit into the header", shape.size());
  std::string out(magic);
  out += '\x01';
  out += '\0';
  out += static_cast<char>(text.size() & 0xff);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

}  // namespace cbk::npy
