#include "host/formats/torch/pickler.hpp"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "host/formats/torch/globals.hpp"
#include "host/formats/torch/long_integer.hpp"
#include "host/formats/torch/numpy.hpp"
#include "host/formats/torch/opcodes.hpp"
#include "host/formats/torch/storage_class.hpp"

namespace cbk::torch {
namespace {

constexpr size_t depth_limit = 1000;
constexpr size_t batch = 1000;                  // items per APPENDS, SETITEMS, as Python does it
constexpr uint64_t array_limit = 256ULL << 20;  // numpy arrays lie inside the pickle
constexpr size_t memo_text_limit = 256;         // longer text is rarely repeated

/// Python's spelling of a dotted global: everything up to the last dot is the module.
std::pair<std::string, std::string> split_global(std::string_view global) {
  const size_t dot = global.rfind('.');
  if (dot == std::string_view::npos) fail(Errc::value, "{} is no dotted name of a class", quote(global));
  return {std::string(global.substr(0, dot)), std::string(global.substr(dot + 1))};
}

class Pickler {
 public:
  explicit Pickler(const PicklerOptions& options) : options_(options) {}

  std::string run(const Value& value) {
    try {
      save(value);
    } catch (const Error& error) {
      throw Error(error.code(),
                  path_.empty() ? error.what() : fmt::format("at {}: {}", quote(path_), error.what()));
    }
    op(Op::stop);
    std::string pickle{static_cast<char>(Op::proto), static_cast<char>(options_.protocol)};
    if (options_.protocol >= 4) {
      pickle.push_back(static_cast<char>(Op::frame));
      append_le<uint64_t>(pickle, out_.size());
    }
    return pickle + out_;
  }

 private:
  // --- opcodes
  void op(Op code) { out_.push_back(static_cast<char>(code)); }
  void mark() { op(Op::mark); }
  void memoize(uint64_t& slot);
  void fetch(uint64_t slot);
  bool fetch_known(const void* identity);
  void remember(const void* identity) { memoize(nodes_[identity]); }

  // --- plain values
  void integer(const Integer& value);
  void integer(int64_t value) { integer(Integer{value, nullptr, true}); }
  void real(double value);
  void text(const std::string& value);
  void bytes(std::string_view value);
  void boolean(bool value) { op(value ? Op::newtrue : Op::newfalse); }
  void byte_string(const ByteString& value);
  void tuple_of_numbers(const std::vector<int64_t>& numbers);

  // --- globals and calls
  void global(std::string_view dotted);
  void type(std::string_view dotted);
  void tuple_end(size_t count);
  void call(size_t argument_count) {
    tuple_end(argument_count);
    op(Op::reduce);
  }

  // --- containers
  void save(const Value& value);
  /// A value made here stays alive: the memo knows nodes by their addresses.
  void save_made(Value value) {
    kept_.push_back(value);
    save(value);
  }
  void save_at(const Value& value, std::string_view part);
  void sequence(const Value& value);
  void appended(const std::vector<Value>& items, Op single, Op several);
  void plain_tuple(const Value& value);
  void dict(const Value& value);
  void entries(const Dict& dict);

  // --- tensors
  void leaf(const Value& value);
  void tensor(const TensorLeaf& leaf);
  void storage(const StoredTensor& stored);
  void strided(const Tensor& tensor, const StoredTensor& stored);
  void hooks() {
    global("collections.OrderedDict");
    op(Op::empty_tuple);
    op(Op::reduce);
  }
  void numpy(const TensorLeaf& leaf);
  void numpy_dtype(DType dtype);
  [[nodiscard]] StoredTensor place(const Tensor& tensor, std::string_view storage_class) const;

  // --- objects
  void object(const Value& value);
  void range(const Object& object);
  void device(const Object& object);
  void sparse(const Object& object);
  void quantized(const Object& object);
  void number_list(const Value& list, bool as_real);
  void stored_storage(const Object& object);
  void record(const Value& value);

  const PicklerOptions& options_;
  std::string out_;
  uint64_t memo_count_ = 0;
  std::unordered_map<const void*, uint64_t> nodes_;
  std::unordered_map<std::string, uint64_t> texts_;
  std::unordered_map<std::string, uint64_t> globals_;
  std::vector<Value> kept_;
  std::string path_;  // dotted, of the value being written
  size_t depth_ = 0;
};

void Pickler::memoize(uint64_t& slot) {
  slot = memo_count_++;
  if (options_.protocol >= 4) return op(Op::memoize);
  op(slot < 256 ? Op::binput : Op::long_binput);
  if (slot < 256) {
    out_.push_back(static_cast<char>(slot));
  } else {
    append_le(out_, static_cast<uint32_t>(slot));
  }
}

void Pickler::fetch(uint64_t slot) {
  op(slot < 256 ? Op::binget : Op::long_binget);
  if (slot < 256) {
    out_.push_back(static_cast<char>(slot));
  } else {
    append_le(out_, static_cast<uint32_t>(slot));
  }
}

bool Pickler::fetch_known(const void* identity) {
  auto found = nodes_.find(identity);
  if (found == nodes_.end()) return false;
  fetch(found->second);
  return true;
}

void Pickler::integer(const Integer& value) {
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

void Pickler::real(double value) {
  op(Op::binfloat);
  append_le(out_, __builtin_bswap64(std::bit_cast<uint64_t>(value)));
}

void Pickler::text(const std::string& value) {
  if (auto known = texts_.find(value); known != texts_.end()) return fetch(known->second);
  if (options_.protocol >= 4 && value.size() < 256) {
    op(Op::short_binunicode);
    append_le(out_, static_cast<uint8_t>(value.size()));
  } else if (value.size() < (1ULL << 32)) {
    op(Op::binunicode);
    append_le(out_, static_cast<uint32_t>(value.size()));
  } else {
    fail(Errc::value, "a text of {}", format_size(value.size()));
  }
  out_ += value;
  if (value.size() <= memo_text_limit) memoize(texts_[value]);
}

void Pickler::bytes(std::string_view value) {
  if (options_.protocol >= 4) {
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

void Pickler::byte_string(const ByteString& value) {
  if (!value.is_mutable) return bytes(value.data);
  type("builtins.bytearray");
  if (value.data.empty()) {
    op(Op::empty_tuple);
    return op(Op::reduce);
  }
  bytes(value.data);
  call(1);
}

void Pickler::global(std::string_view dotted) {
  const std::string name(dotted);
  if (auto known = globals_.find(name); known != globals_.end()) return fetch(known->second);
  auto [module, attribute] = split_global(dotted);
  if (options_.protocol >= 4) {
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
      fail(Errc::value, "{} is no name", quote(dotted));
    op(Op::global);
    out_ += module + "\n" + attribute + "\n";
  }
  memoize(globals_[name]);
}

/// A class: those of Python itself have a spelling of their own in dill.
void Pickler::type(std::string_view dotted) {
  constexpr std::string_view builtins = "builtins.";
  if (!options_.dill || !dotted.starts_with(builtins)) return global(dotted);
  const std::string name(dotted);
  if (auto known = globals_.find(name); known != globals_.end()) return fetch(known->second);
  global("dill._dill._load_type");
  text(name.substr(builtins.size()));
  call(1);
  memoize(globals_[name]);
}

void Pickler::tuple_end(size_t count) {
  constexpr std::array small = {Op::empty_tuple, Op::tuple1, Op::tuple2, Op::tuple3};
  op(small.at(count));
}

void Pickler::save_at(const Value& value, std::string_view part) {
  const size_t length = path_.size();
  if (!path_.empty()) path_ += '.';
  path_ += part;
  save(value);
  path_.resize(length);
}

void Pickler::save(const Value& value) {
  if (value.identity() != nullptr && fetch_known(value.identity())) return;
  if (++depth_ > depth_limit) fail(Errc::value, "values are nested deeper than {}", depth_limit);
  switch (value.kind()) {
    case Value::Kind::none:
      op(Op::none);
      break;
    case Value::Kind::boolean:
      boolean(value.as_bool());
      break;
    case Value::Kind::integer:
      integer(value.as_integer());
      break;
    case Value::Kind::real:
      real(value.as_double());
      break;
    case Value::Kind::complex:
      type("builtins.complex");
      real(value.as_complex().real());
      real(value.as_complex().imag());
      call(2);
      break;
    case Value::Kind::string:
      text(value.as_string());
      break;
    case Value::Kind::bytes:
      byte_string(value.as_bytes());
      remember(value.identity());
      break;
    case Value::Kind::sequence:
      sequence(value);
      break;
    case Value::Kind::dict:
      dict(value);
      break;
    case Value::Kind::tensor:
      leaf(value);
      break;
    case Value::Kind::object:
      object(value);
      break;
  }
  --depth_;
}

void Pickler::appended(const std::vector<Value>& items, Op single, Op several) {
  for (size_t begin = 0; begin < items.size(); begin += batch) {
    const size_t end = std::min(items.size(), begin + batch);
    const bool is_one = end - begin == 1 && single != several;
    if (!is_one) mark();
    for (size_t i = begin; i < end; ++i) save_at(items[i], std::to_string(i));
    op(is_one ? single : several);
  }
}

void Pickler::plain_tuple(const Value& value) {
  const auto& items = value.as_sequence().items;
  if (items.size() > 3) mark();
  for (size_t i = 0; i < items.size(); ++i) save_at(items[i], std::to_string(i));
  // A tuple that holds itself through a list is known by now: drop the parts and take that one.
  if (auto known = nodes_.find(value.identity()); known != nodes_.end())
    fail(Errc::value, "a tuple contains itself");
  if (items.size() > 3) {
    op(Op::tuple);
  } else {
    tuple_end(items.size());
  }
  if (!items.empty()) remember(value.identity());
}

void Pickler::sequence(const Value& value) {
  const Sequence& sequence = value.as_sequence();
  using Kind = Sequence::Kind;
  if (sequence.kind == Kind::tuple && sequence.type.empty()) return plain_tuple(value);
  switch (sequence.kind) {
    case Kind::list:
      op(Op::empty_list);
      remember(value.identity());
      return appended(sequence.items, Op::append, Op::appends);
    case Kind::set:
      if (options_.protocol >= 4) {
        op(Op::empty_set);
        remember(value.identity());
        return appended(sequence.items, Op::additems, Op::additems);
      }
      break;
    case Kind::frozenset:
      if (options_.protocol >= 4) {
        mark();
        for (size_t i = 0; i < sequence.items.size(); ++i) save_at(sequence.items[i], std::to_string(i));
        op(Op::frozenset);
        return remember(value.identity());
      }
      break;
    default:
      break;
  }
  // The rest is a class called with a list or a tuple of the items.
  if (sequence.kind == Kind::tuple) {
    global(sequence.type);
    save_made(Value::tuple(sequence.items));
    op(Op::newobj);
    return remember(value.identity());
  }
  const bool is_size = sequence.kind == Kind::torch_size;
  if (is_size || sequence.kind == Kind::deque) {
    global(is_size ? "torch.Size" : "collections.deque");
  } else {
    type(sequence.kind == Kind::set ? "builtins.set" : "builtins.frozenset");
  }
  save_made(is_size ? Value::tuple(sequence.items) : Value::list(sequence.items));
  if (sequence.maxlen) integer(*sequence.maxlen);
  call(sequence.maxlen ? 2 : 1);
  remember(value.identity());
}

void Pickler::entries(const Dict& dict) {
  const auto& all = dict.entries();
  for (size_t begin = 0; begin < all.size(); begin += batch) {
    const size_t end = std::min(all.size(), begin + batch);
    if (end - begin > 1) mark();
    for (size_t i = begin; i < end; ++i) {
      save(all[i].first);
      save_at(all[i].second, key_text(all[i].first));
    }
    op(end - begin > 1 ? Op::setitems : Op::setitem);
  }
}

void Pickler::dict(const Value& value) {
  const Dict& dict = value.as_dict();
  switch (dict.kind) {
    case Dict::Kind::dict:
      op(Op::empty_dict);
      remember(value.identity());
      return entries(dict);
    case Dict::Kind::ordered:
      hooks();
      remember(value.identity());
      entries(dict);
      if (!dict.attributes.is_none()) {
        save_at(dict.attributes, "__dict__");
        op(Op::build);
      }
      return;
    case Dict::Kind::counter: {
      global("collections.Counter");
      op(Op::empty_dict);
      entries(dict);
      call(1);
      return remember(value.identity());
    }
    case Dict::Kind::defaultdict:
      global("collections.defaultdict");
      save(dict.attributes);
      call(1);
      remember(value.identity());
      return entries(dict);
  }
}

// ---------------------------------------------------------------- tensors

StoredTensor Pickler::place(const Tensor& tensor, std::string_view storage_class) const {
  if (!options_.store) fail(Errc::value, "a tensor cannot be a part of this pickle");
  return options_.store(tensor, std::string(storage_class), path_);
}

void Pickler::storage(const StoredTensor& stored) {
  mark();
  text("storage");
  global((stored.storage_class == "UntypedStorage" ? "torch.storage." : "torch.") + stored.storage_class);
  text(stored.key);
  text("cpu");
  integer(stored.storage_numel);
  op(Op::tuple);
  op(Op::binpersid);
}

void Pickler::tuple_of_numbers(const std::vector<int64_t>& numbers) {
  if (numbers.size() > 3) mark();
  for (int64_t number : numbers) integer(number);
  if (numbers.size() > 3) {
    op(Op::tuple);
  } else {
    tuple_end(numbers.size());
  }
}

/// Storage, offset, size and strides: how the arguments of every rebuild function begin.
void Pickler::strided(const Tensor& tensor, const StoredTensor& stored) {
  storage(stored);
  integer(stored.offset);
  tuple_of_numbers(tensor.shape());
  tuple_of_numbers(stored.strides);
}

void Pickler::tensor(const TensorLeaf& leaf) {
  const bool is_parameter = leaf.role == TensorLeaf::Role::parameter;
  const StoredTensor stored = place(leaf.tensor, storage_class_of(leaf.tensor.dtype()));
  const bool is_untyped = stored.storage_class == "UntypedStorage";
  if (is_parameter) global("torch._utils._rebuild_parameter");
  global(is_untyped ? "torch._utils._rebuild_tensor_v3" : "torch._utils._rebuild_tensor_v2");
  mark();
  strided(leaf.tensor, stored);
  boolean(leaf.requires_grad && !is_parameter);
  hooks();
  if (is_untyped) global("torch." + std::string(name_of(leaf.tensor.dtype())));
  op(Op::tuple);
  op(Op::reduce);
  if (!is_parameter) return;
  boolean(leaf.requires_grad);
  hooks();
  call(3);
}

void Pickler::leaf(const Value& value) {
  const TensorLeaf& leaf = value.as_leaf();
  if (leaf.role == TensorLeaf::Role::ndarray || leaf.role == TensorLeaf::Role::np_scalar) {
    numpy(leaf);
  } else {
    tensor(leaf);
  }
  remember(value.identity());
}

void Pickler::numpy_dtype(DType dtype) {
  const std::string code = numpy_code(dtype);
  const std::string memo = "numpy.dtype " + code;
  if (auto known = globals_.find(memo); known != globals_.end()) return fetch(known->second);
  global("numpy.dtype");
  text(code);
  boolean(false);
  boolean(true);
  call(3);
  memoize(globals_[memo]);
  mark();
  integer(3);
  text(size_of(dtype) == 1 ? "|" : "<");
  for (int i = 0; i < 3; ++i) op(Op::none);
  integer(-1);
  integer(-1);
  integer(0);
  op(Op::tuple);
  op(Op::build);
}

void Pickler::numpy(const TensorLeaf& leaf) {
  const Tensor& tensor = leaf.tensor;
  const Bytes elements = tensor.to_bytes(array_limit);
  if (leaf.role == TensorLeaf::Role::np_scalar) {
    global("numpy.core.multiarray.scalar");
    numpy_dtype(tensor.dtype());
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
  numpy_dtype(tensor.dtype());
  boolean(false);
  bytes(as_text(elements));
  op(Op::tuple);
  op(Op::build);
}

// ---------------------------------------------------------------- objects

void Pickler::object(const Value& value) {
  const Object& object = value.as_object();
  if (object.type == "class") return type(object.repr);
  if (object.type == "torch.dtype" || object.type == "torch.qscheme") return global(object.repr);
  if (object.type == "torch.layout") {
    global("torch.serialization._get_layout");
    text(object.repr);
    call(1);
  } else if (object.type == "torch.device") {
    device(object);
  } else if (object.type == "builtins.range") {
    range(object);
  } else if (object.type.starts_with("torch.sparse_")) {
    sparse(object);
  } else if (object.type == "torch.quantized") {
    quantized(object);
  } else if (object.type == "torch.storage") {
    stored_storage(object);
  } else {
    return record(value);
  }
  remember(value.identity());
}

void Pickler::range(const Object& object) {
  if (options_.dill) {
    global("dill._dill._eval_repr");
    text(object.repr);
    return call(1);
  }
  // "range(3, 9)" or "range(3, 9, 2)"
  std::string_view rest = object.repr;
  if (!rest.starts_with("range(") || !rest.ends_with(")"))
    fail(Errc::value, "{} is no range", quote(object.repr));
  rest = rest.substr(6, rest.size() - 7);
  std::vector<Value> numbers;
  while (true) {
    const size_t comma = rest.find(", ");
    numbers.push_back(Value::integer(rest.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 2);
  }
  if (numbers.size() == 2) numbers.emplace_back(1);
  if (numbers.size() != 3) fail(Errc::value, "{} is no range", quote(object.repr));
  global("builtins.range");
  for (const Value& number : numbers) integer(number.as_integer());
  call(3);
}

void Pickler::device(const Object& object) {
  const size_t colon = object.repr.find(':');
  global("torch.device");
  text(object.repr.substr(0, colon));
  if (colon == std::string::npos) return call(1);
  integer(Value::integer(std::string_view(object.repr).substr(colon + 1)).as_integer());
  call(2);
}

void Pickler::sparse(const Object& object) {
  const Dict& state = object.state.as_dict();
  global("torch._utils._rebuild_sparse_tensor");
  global("torch.serialization._get_layout");
  text(object.type);
  call(1);
  const auto shape = [&] { save_made(Value::tuple(state.at("shape").as_sequence().items)); };
  if (object.type == "torch.sparse_coo") {
    save_at(state.at("indices"), "indices");
    save_at(state.at("values"), "values");
    shape();
    // torch 1.13 takes exactly three parts; a newer torch also takes whether the indices are sorted.
    tuple_end(3);
  } else {
    const bool by_row = object.type == "torch.sparse_csr" || object.type == "torch.sparse_bsr";
    mark();
    for (const char* name :
         {by_row ? "crow_indices" : "ccol_indices", by_row ? "col_indices" : "row_indices", "values"}) {
      save_at(state.at(name), name);
    }
    shape();
    op(Op::tuple);
  }
  call(2);
}

void Pickler::number_list(const Value& list, bool as_real) {
  Bytes elements;
  for (const Value& item : list.as_sequence().items) {
    elements.resize(elements.size() + 8);
    std::byte* at = elements.data() + elements.size() - 8;
    if (as_real) {
      store_le(at, item.as_double());
    } else {
      store_le(at, item.as_int());
    }
  }
  const auto count = static_cast<int64_t>(elements.size() / 8);
  save_made(Tensor::from_bytes(as_real ? DType::float64 : DType::int64, {count}, std::move(elements)));
}

void Pickler::quantized(const Object& object) {
  const Dict& state = object.state.as_dict();
  const StorageClass* type = find_quantized_class(state.at("dtype").as_string());
  if (type == nullptr) fail(Errc::value, "{} is no quantized dtype", quote(state.at("dtype").as_string()));
  const Tensor& elements = state.at("int_repr").as_tensor();
  const std::string& scheme = state.at("qscheme").as_string();
  global("torch._utils._rebuild_qtensor");
  mark();
  strided(elements, place(elements, type->name));
  if (scheme.starts_with("torch.per_tensor")) {
    global(scheme);
    real(state.at("scale").as_double());
    integer(state.at("zero_point").as_integer());
    tuple_end(3);
  } else {
    mark();
    global(scheme);
    number_list(state.at("scales"), true);
    number_list(state.at("zero_points"), scheme == "torch.per_channel_affine_float_qparams");
    integer(state.at("axis").as_integer());
    op(Op::tuple);
  }
  const Value* requires_grad = state.find(std::string_view("requires_grad"));
  boolean(requires_grad != nullptr && requires_grad->as_bool());
  hooks();
  op(Op::tuple);
  op(Op::reduce);
}

void Pickler::stored_storage(const Object& object) {
  storage(place(object.state.as_tensor(), object.repr));
}

/// An instance whose state is set: any class, without knowing it.
void Pickler::record(const Value& value) {
  const Object& object = value.as_object();
  if (object.type == "cerebras.graph_tensor") {
    fail(Errc::value, "a graph tensor (computed by {}) has no value that a pickle could hold",
         quote(object.repr));
  }
  if (!object.pickle.empty() || object.type.find('.') == std::string::npos ||
      is_forbidden_module(object.type)) {
    fail(Errc::value, "an object of the class {} cannot be a part of this pickle", quote(object.type));
  }
  global(object.type);
  op(Op::empty_tuple);
  op(Op::newobj);
  remember(value.identity());
  if (object.state.is_none()) return;
  save(object.state);
  op(Op::build);
}

}  // namespace

std::string storage_class_of(DType dtype) {
  return std::string(storage_class_for(dtype).name);
}

std::string pickle(const Value& value, const PicklerOptions& options) {
  return Pickler(options).run(value);
}

std::string dill_pickle(const Value& value) {
  if (value.is(Value::Kind::object) && !value.as_object().pickle.empty()) return value.as_object().pickle;
  return pickle(value, {4, true, {}});
}

}  // namespace cbk::torch
