#include "host/formats/pickle/stream.hpp"

#include <array>
#include <charconv>

#include "host/base/hash.hpp"
#include "host/base/utf8.hpp"
#include "host/formats/pickle/long_integer.hpp"
#include "host/formats/pickle/numpy.hpp"

namespace cbk::pickle {
namespace {

constexpr uint64_t array_limit = 256ULL << 20;  // numpy arrays lie inside the pickle
constexpr size_t memo_text_limit = 256;         // longer text is rarely repeated

/// Python's spelling of a dotted global: everything up to the last dot is the module.
std::pair<std::string, std::string> split_global(std::string_view global) {
  const size_t dot = global.rfind('.');
  if (dot == std::string_view::npos) fail(Errc::value, "{} is not the dotted name of a class", quote(global));
  return {std::string(global.substr(0, dot)), std::string(global.substr(dot + 1))};
}

}  // namespace

Stream::Stream(int protocol, bool dill, bool is_rehearsal)
    : protocol_(protocol), dill_(dill), is_rehearsal_(is_rehearsal) {
  out_ = {static_cast<char>(Op::proto), static_cast<char>(protocol_)};
  if (protocol_ < 4) return;
  out_.push_back(static_cast<char>(Op::frame));
  append_le<uint64_t>(out_, 0);  // its length, when it is known
}

std::string Stream::finish() {
  op(Op::stop);
  if (protocol_ >= 4 && !is_rehearsal_) {
    constexpr size_t head = 11;
    std::string length;
    append_le<uint64_t>(length, out_.size() - head);
    out_.replace(head - length.size(), length.size(), length);
  }
  return std::move(out_);
}

void Stream::memoize(uint64_t& slot) {
  slot = memo_count_++;
  if (protocol_ >= 4) return op(Op::memoize);
  op(slot < 256 ? Op::binput : Op::long_binput);
  if (slot < 256) {
    out_.push_back(static_cast<char>(slot));
  } else {
    append_le(out_, static_cast<uint32_t>(slot));
  }
}

void Stream::fetch(uint64_t slot) {
  op(slot < 256 ? Op::binget : Op::long_binget);
  if (slot < 256) {
    out_.push_back(static_cast<char>(slot));
  } else {
    append_le(out_, static_cast<uint32_t>(slot));
  }
}

bool Stream::fetch_known(const void* identity) {
  auto found = nodes_.find(identity);
  if (found == nodes_.end()) return false;
  fetch(found->second);
  return true;
}

void Stream::integer(const Integer& value) {
  if (value.fits && value.value >= 0 && value.value < 0x100) {
    op(Op::binint1);
    return append_le(out_, static_cast<uint8_t>(value.value));
  }
  if (value.fits && value.value >= 0 && value.value < 0x10000) {
    op(Op::binint2);
    return append_le(out_, static_cast<uint16_t>(value.value));
  }
  if (value.fits && value.value == static_cast<int32_t>(value.value)) {
    op(Op::binint);
    return append_le(out_, static_cast<int32_t>(value.value));
  }
  const std::string number = encode_long(value);
  if (number.size() < 256) {
    op(Op::long1);
    append_le(out_, static_cast<uint8_t>(number.size()));
  } else {
    op(Op::long4);
    append_le(out_, static_cast<uint32_t>(number.size()));
  }
  out_ += number;
}

void Stream::real(double value) {
  op(Op::binfloat);
  append_le(out_, __builtin_bswap64(std::bit_cast<uint64_t>(value)));
}

void Stream::text(const std::string& value) {
  if (!is_utf8(value))
    fail(Errc::value, "the text {} is not Unicode, and a pickle has no other", quote(value));
  if (is_rehearsal_) return;
  const bool is_kept = value.size() <= memo_text_limit;
  const auto own = static_cast<uint32_t>(texts_.size());
  const auto is_same = [&](uint32_t other) {
    return std::string_view(out_).substr(texts_[other].begin, texts_[other].size) == value;
  };
  if (is_kept) {
    const auto known = text_index_.find_or_add(KeyedHash()(value), own, is_same);
    if (known) return fetch(texts_[*known].slot);
  }
  if (protocol_ >= 4 && value.size() < 256) {
    op(Op::short_binunicode);
    append_le(out_, static_cast<uint8_t>(value.size()));
  } else if (value.size() < (1ULL << 32)) {
    op(Op::binunicode);
    append_le(out_, static_cast<uint32_t>(value.size()));
  } else {
    fail(Errc::value, "a text of {}", format_size(value.size()));
  }
  out_ += value;
  if (!is_kept) return;
  texts_.push_back({out_.size() - value.size(), static_cast<uint32_t>(value.size()), 0});
  uint64_t slot = 0;
  memoize(slot);
  texts_.back().slot = static_cast<uint32_t>(slot);
}

void Stream::bytes(std::string_view value) {
  if (protocol_ >= 4) {
    if (value.size() >= (1ULL << 32)) fail(Errc::value, "bytes of {}", format_size(value.size()));
    op(value.size() < 256 ? Op::short_binbytes : Op::binbytes);
    if (value.size() < 256) {
      append_le(out_, static_cast<uint8_t>(value.size()));
    } else {
      append_le(out_, static_cast<uint32_t>(value.size()));
    }
    out_ += value;
    return;
  }
  if (value.empty()) {
    type("builtins.bytes");
    op(Op::empty_tuple);
    return op(Op::reduce);
  }
  // Protocol 2 has no bytes: text of the same code points, encoded as Latin-1.
  std::string latin;
  latin.reserve(value.size() * 2);
  for (char c : value) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x80) {
      latin.push_back(c);
    } else {
      latin.push_back(static_cast<char>(0xc0 | byte >> 6));
      latin.push_back(static_cast<char>(0x80 | (byte & 0x3f)));
    }
  }
  global("_codecs.encode");
  text(latin);
  text("latin1");
  call(2);
}

void Stream::byte_string(const ByteString& value) {
  if (!value.is_mutable) return bytes(value.data);
  type("builtins.bytearray");
  if (value.data.empty()) {
    op(Op::empty_tuple);
    return op(Op::reduce);
  }
  bytes(value.data);
  call(1);
}

void Stream::global(std::string_view dotted) {
  const std::string name(dotted);
  if (auto known = globals_.find(name); known != globals_.end()) return fetch(known->second);
  auto [module, attribute] = split_global(dotted);
  if (protocol_ >= 4) {
    text(module);
    text(attribute);
    op(Op::stack_global);
  } else {
    if (module == "builtins") {  // protocol 2 speaks of Python 2's modules
      module = "__builtin__";
      if (attribute == "range") attribute = "xrange";
    } else if (module == "copyreg") {
      module = "copy_reg";
    }
    if ((module + attribute).find('\n') != std::string::npos)
      fail(Errc::value, "{} cannot be the name of a class", quote(dotted));
    op(Op::global);
    out_ += module + "\n" + attribute + "\n";
  }
  memoize(globals_[name]);
}

/// A class: dill has a special form for Python's own classes.
void Stream::type(std::string_view dotted) {
  constexpr std::string_view builtins = "builtins.";
  if (!dill_ || !dotted.starts_with(builtins)) return global(dotted);
  const std::string name(dotted);
  if (auto known = globals_.find(name); known != globals_.end()) return fetch(known->second);
  global("dill._dill._load_type");
  text(name.substr(builtins.size()));
  call(1);
  memoize(globals_[name]);
}

void Stream::tuple_end(size_t count) {
  constexpr std::array small = {Op::empty_tuple, Op::tuple1, Op::tuple2, Op::tuple3};
  op(small.at(count));
}

void Stream::tuple_of_numbers(const std::vector<int64_t>& numbers) {
  if (numbers.size() > 3) mark();
  for (int64_t number : numbers) integer(number);
  if (numbers.size() > 3) {
    op(Op::tuple);
  } else {
    tuple_end(numbers.size());
  }
}

namespace {

struct NumpyDType {
  std::string code;  // without the byte order
  char order = '|';
  int64_t itemsize = -1;  // of texts, as numpy counts them
  int64_t alignment = -1;
  int64_t flags = 0;
};

NumpyDType numpy_parts(std::string_view code) {
  NumpyDType out;
  const bool has_order = code.find_first_of("<>|=") == 0;
  out.code = code.substr(has_order ? 1 : 0);
  const bool is_text = out.code.starts_with('S') || out.code.starts_with('U');
  uint32_t length = 0;
  const char* end = out.code.data() + out.code.size();
  const auto [last, problem] = std::from_chars(out.code.data() + 1, end, length);
  if (out.code.size() < 2 || problem != std::errc{} || last != end || !(is_text || is_numpy_number(out.code)))
    fail(Errc::unsupported, "the numpy dtype {} cannot be written; leave it out (cbk copy --exclude)",
         quote(code, 40));
  const bool is_wide = out.code[0] == 'U';
  if (is_text) {
    out.itemsize = int64_t{length} * (is_wide ? 4 : 1);
    out.alignment = is_wide ? 4 : 1;
    out.flags = is_wide ? 8 : 0;
  }
  const bool is_single = !is_wide && (is_text || length == 1);
  out.order = is_single ? '|' : has_order && code[0] == '>' ? '>' : '<';
  return out;
}

}  // namespace

void Stream::numpy_dtype(std::string_view code) {
  const NumpyDType parts = numpy_parts(code);
  const std::string memo = fmt::format("numpy.dtype {}{}", parts.order, parts.code);
  if (auto known = globals_.find(memo); known != globals_.end()) return fetch(known->second);
  global("numpy.dtype");
  text(parts.code);
  boolean(false);
  boolean(true);
  call(3);
  memoize(globals_[memo]);
  mark();
  integer(3);
  text(std::string(1, parts.order));
  for (int i = 0; i < 3; ++i) op(Op::none);
  integer(parts.itemsize);
  integer(parts.alignment);
  integer(parts.flags);
  op(Op::tuple);
  op(Op::build);
}

void Stream::numpy(const TensorLeaf& leaf) {
  const Tensor& tensor = leaf.tensor;
  const Bytes elements = tensor.to_bytes(array_limit);
  if (leaf.role == TensorLeaf::Role::np_scalar) {
    global("numpy.core.multiarray.scalar");
    numpy_dtype(numpy_code(tensor.dtype()));
    bytes(as_text(elements));
    return call(2);
  }
  global("numpy.core.multiarray._reconstruct");
  global("numpy.ndarray");
  tuple_of_numbers({0});
  bytes("b");
  call(3);
  mark();
  integer(1);
  tuple_of_numbers(tensor.shape());
  numpy_dtype(numpy_code(tensor.dtype()));
  boolean(false);
  bytes(as_text(elements));
  op(Op::tuple);
  op(Op::build);
}

}  // namespace cbk::pickle
