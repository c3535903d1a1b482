#include "host/formats/pickle/pickler.hpp"

#include <algorithm>

#include "host/formats/pickle/globals.hpp"
#include "host/formats/pickle/storage_class.hpp"
#include "host/formats/pickle/stream.hpp"
#include "host/formats/pickle/torch_tensors.hpp"
#include "host/value/kind.hpp"

namespace cbk::pickle {
namespace {

constexpr size_t deepest_written = 1000;
constexpr size_t batch = 1000;  // items per APPENDS, SETITEMS, as Python does it

void check_class(const std::string& name) {
  if (is_inert_class(name)) return;
  fail(Errc::refused,
       "an object of the class {} can be read, but is not written: whoever loads it would run code of that "
       "class; "
       "leave it out (cbk copy --exclude)",
       quote(name));
}

/// Fails for what was only described when it was read.
[[noreturn]] void refuse_inert(const std::string& name) {
  if (!is_inert_class(name)) check_class(name);
  throw Error(Errc::refused,
              {.problem = fmt::format("{} is not plain data, and is not written unless that is asked for",
                                      quote(name)),
               .advice = "leave it out (cbk copy --exclude), or write it as it was read with --allow-records "
                         "(in Lua allow_records = true)"});
}

class Pickler : private Stream {
 public:
  explicit Pickler(const PicklerOptions& options, bool is_rehearsal = false)
      : Stream(options.protocol, options.dill, is_rehearsal), options_(options) {}

  std::string run(const Value& value) {
    try {
      save(value);
    } catch (const Error& error) {
      if (path_.empty()) throw;
      throw error.in(fmt::format("at {}", quote(path_)));
    }
    return finish();
  }

 private:
  // --- containers
  void save(const Value& value);
  /// Values made here are kept alive, because the memo identifies nodes by address.
  void save_made(const Value& value) {
    kept_.push_back(value);
    save(value);
  }
  void save_at(const Value& value, std::string_view part);
  void sequence(const Value& value);
  void instance_of_class(const Value& value);
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
  [[nodiscard]] StoredTensor place(const Tensor& tensor, std::string_view storage_class) const;

  // --- objects
  void object(const Value& value);
  void constant(const std::string& name, Meaning meaning);
  void range(const Object& object);
  void device(const Object& object);
  void sparse(const Object& object);
  void quantized(const Object& object);
  void number_tensor(const Value& list, DType dtype);
  void stored_storage(const Object& object);
  void record(const Value& value);

  const PicklerOptions& options_;
  std::vector<Value> kept_;
  std::string path_;               // dotted, of the value being written
  std::vector<const void*> open_;  // what is being written, outermost first; nullptr for scalars
};

void Pickler::save_at(const Value& value, std::string_view part) {
  const size_t length = path_.size();
  if (!path_.empty()) path_ += '.';
  path_ += part;
  save(value);
  path_.resize(length);
}

void Pickler::save(const Value& value) {
  const void* node = value.identity();
  if (node != nullptr && std::ranges::find(open_, node) != open_.end())
    fail(Errc::value, "{} holds itself", a_kind(value));
  if (node != nullptr && fetch_known(node)) return;
  if (open_.size() >= deepest_written) fail(Errc::value, "values are nested deeper than {}", deepest_written);
  open_.push_back(node);
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
  open_.pop_back();
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
      if (protocol() >= 4) {
        op(Op::empty_set);
        remember(value.identity());
        return appended(sequence.items, Op::additems, Op::additems);
      }
      break;
    case Kind::frozenset:
      if (protocol() >= 4) {
        mark();
        for (size_t i = 0; i < sequence.items.size(); ++i) save_at(sequence.items[i], std::to_string(i));
        op(Op::frozenset);
        return remember(value.identity());
      }
      break;
    default:
      break;
  }
  instance_of_class(value);
}

/// Sequences that are written as a class called with a list or tuple of the items.
void Pickler::instance_of_class(const Value& value) {
  const Sequence& sequence = value.as_sequence();
  using Kind = Sequence::Kind;
  if (sequence.kind == Kind::tuple) {
    fail(Errc::unsupported,
         "an instance of the class {} that is made of arguments is not written: it would be a call of that "
         "class; leave it out (cbk copy --exclude)",
         quote(sequence.type));
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
  auto entry = dict.entries().begin();
  for (size_t left = dict.size(); left > 0;) {
    const size_t count = std::min<size_t>(left, batch);
    if (count > 1) mark();
    for (size_t i = 0; i < count; ++i, ++entry) {
      save(entry->first);
      save_at(entry->second, key_text(entry->first));
    }
    op(count > 1 ? Op::setitems : Op::setitem);
    left -= count;
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

/// Storage, offset, size and strides: the first arguments of every rebuild function.
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

// ---------------------------------------------------------------- objects

void Pickler::object(const Value& value) {
  const Object& object = value.as_object();
  if (object.is_inert) refuse_inert(object.type == "class" ? object.repr : object.type);
  if (object.type == "class") {
    check_class(object.repr);
    return type(object.repr);
  }
  if (object.type == "torch.dtype") return constant(object.repr, Meaning::dtype);
  if (object.type == "torch.qscheme") return constant(object.repr, Meaning::qscheme);
  if (object.type == "torch.layout") {
    if (find_global(object.repr, false) != Meaning::layout)
      fail(Errc::value, "{} is not a layout", quote(object.repr));
    global("torch.serialization._get_layout");
    text(object.repr);
    call(1);
  } else if (object.type == "numpy.dtype") {
    return numpy_dtype(object.repr);
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

/// A constant of torch. Its name may come from a file.
void Pickler::constant(const std::string& name, Meaning meaning) {
  if (find_global(name, false) != meaning) fail(Errc::value, "{} is no constant of torch", quote(name));
  global(name);
}

void Pickler::range(const Object& object) {
  if (is_dill()) {
    global("dill._dill._eval_repr");
    text(object.repr);
    return call(1);
  }
  // "range(3, 9)" or "range(3, 9, 2)"
  std::string_view rest = object.repr;
  if (!rest.starts_with("range(") || !rest.ends_with(")"))
    fail(Errc::value, "{} is not a range", quote(object.repr));
  rest = rest.substr(6, rest.size() - 7);
  std::vector<Value> numbers;
  while (true) {
    const size_t comma = rest.find(", ");
    numbers.push_back(Value::integer(rest.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 2);
  }
  if (numbers.size() == 2) numbers.emplace_back(1);
  if (numbers.size() != 3) fail(Errc::value, "{} is not a range", quote(object.repr));
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
  const Value* function = state.find(std::string_view("function"));
  const bool is_old = function != nullptr && function->is(Value::Kind::string) &&
                      function->as_string() == sparse_csr_function;
  global(is_old ? sparse_csr_function : "torch._utils._rebuild_sparse_tensor");
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

/// A list of numbers as torch's small tensor.
void Pickler::number_tensor(const Value& list, DType dtype) {
  const auto& items = list.as_sequence().items;
  Bytes elements(items.size() * size_of(dtype));
  std::byte* at = elements.data();
  for (const Value& item : items) {
    if (dtype == DType::int64) store_le(at, item.as_int());
    if (dtype == DType::float64) store_le(at, item.as_double());
    if (dtype == DType::float32) store_le(at, static_cast<float>(item.as_double()));
    at += size_of(dtype);
  }
  save_made(Tensor::from_bytes(dtype, {static_cast<int64_t>(items.size())}, std::move(elements)));
}

void Pickler::quantized(const Object& object) {
  const Dict& state = object.state.as_dict();
  const StorageClass* type = find_quantized_class(state.at("dtype").as_string());
  if (type == nullptr) fail(Errc::value, "{} is not a quantized dtype", quote(state.at("dtype").as_string()));
  const Tensor& elements = state.at("int_repr").as_tensor();
  const std::string& scheme = state.at("qscheme").as_string();
  global("torch._utils._rebuild_qtensor");
  mark();
  strided(elements, place(elements, type->name));
  if (scheme.starts_with("torch.per_tensor")) {
    constant(scheme, Meaning::qscheme);
    real(state.at("scale").as_double());
    integer(state.at("zero_point").as_integer());
    tuple_end(3);
  } else {
    mark();
    const bool real_points = scheme == float_scheme;
    constant(real_points ? "torch.per_channel_affine" : scheme, Meaning::qscheme);
    number_tensor(state.at("scales"), real_points ? DType::float32 : DType::float64);
    number_tensor(state.at("zero_points"), real_points ? DType::float32 : DType::int64);
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

/// An instance with a state, for any class.
void Pickler::record(const Value& value) {
  const Object& object = value.as_object();
  if (object.type == "cerebras.graph_tensor") {
    fail(Errc::value, "a graph tensor (computed by {}) has no value that a pickle could hold",
         quote(object.repr));
  }
  if (object.type.starts_with("safetensors.")) {
    fail(Errc::unsupported,
         "{} has elements smaller than a byte, which cannot be copied; use the safetensors file itself",
         object.repr);
  }
  check_class(object.type);
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

std::string dump(const Value& value, const PicklerOptions& options) {
  return Pickler(options).run(value);
}

void rehearse(const Value& value, const PicklerOptions& options) {
  Pickler(options, true).run(value);
}

std::string dump_dill(const Value& value) {
  return dump(value, {4, true, {}});
}

}  // namespace cbk::pickle
