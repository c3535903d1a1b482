#include "host/formats/pickle/calls.hpp"

#include <charconv>
#include <utility>

#include "host/formats/pickle/numpy.hpp"
#include "host/formats/pickle/torch_tensors.hpp"
#include "host/value/kind.hpp"

namespace cbk::pickle {
namespace {

std::vector<Value> items_of(const Value& value) {
  if (value.is(Value::Kind::dict)) {
    std::vector<Value> keys;
    for (const auto& entry : value.as_dict().entries()) keys.push_back(entry.first);
    return keys;
  }
  return value.as_sequence().items;
}

/// list(x), set(x), …: of nothing, or of one sequence.
Value make_sequence(CallContext& context, Sequence::Kind kind, const Arguments& arguments) {
  const Value* source = arguments.find(0);
  std::vector<Value> items;
  if (source != nullptr) items = items_of(*source);
  return context.arena.sequence(kind, std::move(items));
}

Value make_deque(CallContext& context, const Arguments& arguments) {
  Value deque = make_sequence(context, Sequence::Kind::deque, arguments);
  const Value* maxlen = arguments.find(1);
  if (maxlen != nullptr && !maxlen->is_none()) deque.as_sequence().maxlen = maxlen->as_int();
  return deque;
}

/// dict(x), OrderedDict(x), Counter(x): of nothing, a dict, or a list of pairs.
Value make_dict(CallContext& context, Dict::Kind kind, const Value* source) {
  Value made = context.arena.dict(kind);
  Dict& dict = made.as_dict();
  if (source == nullptr) return made;
  if (source->is(Value::Kind::dict)) {
    for (const auto& [key, value] : source->as_dict().entries()) context.arena.set_item(dict, key, value);
    return made;
  }
  for (const Value& pair : source->as_sequence().items) {
    const Arguments entry(pair);
    context.arena.set_item(dict, entry.at(0), entry.at(1));
  }
  return made;
}

Value make_defaultdict(CallContext& context, const Arguments& arguments) {
  Value made = make_dict(context, Dict::Kind::defaultdict, arguments.find(1));
  if (const Value* factory = arguments.find(0)) {
    // It is called later, when a missing key is requested.
    const bool is_known = factory->is_none() ||
                          find_global(expect_object(*factory, "class").repr, context.options.dill) ||
                          context.options.describes;
    if (!is_known) fail(Errc::refused, "{}", factory->as_object().repr);
    made.as_dict().attributes = *factory;
  }
  return made;
}

Value make_bytes(CallContext& context, bool is_mutable, const Arguments& arguments) {
  const Value* source = arguments.find(0);
  if (source == nullptr) return context.arena.bytes("", is_mutable);
  if (source->is(Value::Kind::bytes)) return context.arena.bytes(source->as_bytes().data, is_mutable);
  std::string data;  // from a list of numbers, or from text with an encoding (Python 2's bytearray)
  if (source->is(Value::Kind::string)) return context.arena.bytes(source->as_string(), is_mutable);
  for (const Value& item : items_of(*source)) {
    const int64_t byte = item.as_int();
    if (byte < 0 || byte > 255) fail(Errc::format, "{} is not a byte", byte);
    data.push_back(static_cast<char>(byte));
  }
  return context.arena.bytes(std::move(data), is_mutable);
}

/// _codecs.encode(text, "latin1"): the form of bytes in protocol 2.
Value encode(CallContext& context, const Arguments& arguments) {
  const std::string& text = arguments.at(0).as_string();
  const std::string encoding = arguments.size() > 1 ? arguments.at(1).as_string() : "utf-8";
  if (encoding == "utf-8" || encoding == "utf8") return context.arena.bytes(text);
  if (encoding != "latin1" && encoding != "latin-1") fail(Errc::format, "the encoding {}", quote(encoding));
  std::string data;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte < 0x80) {
      data.push_back(text[i]);
    } else if ((byte == 0xc2 || byte == 0xc3) && i + 1 < text.size()) {
      data.push_back(static_cast<char>((byte & 3) << 6 | (static_cast<uint8_t>(text[++i]) & 0x3f)));
    } else {
      fail(Errc::format, "bytes that are written as text beyond Latin-1");
    }
  }
  return context.arena.bytes(std::move(data));
}

Value make_integer(const Value& value) {
  if (value.is(Value::Kind::boolean)) return static_cast<int64_t>(value.as_bool());
  return value.as_integer();
}

Value make_complex(const Arguments& arguments) {
  return std::complex<double>(arguments.at(0).as_double(),
                              arguments.size() > 1 ? arguments.at(1).as_double() : 0.0);
}

Value range_object(CallContext& context, int64_t start, int64_t stop, int64_t step) {
  std::string repr = step == 1 ? fmt::format("range({}, {})", start, stop)
                               : fmt::format("range({}, {}, {})", start, stop, step);
  return context.arena.object("builtins.range", std::move(repr));
}

Value make_range(CallContext& context, const Arguments& arguments) {
  if (arguments.size() == 1) return range_object(context, 0, arguments.at(0).as_int(), 1);
  return range_object(context, arguments.at(0).as_int(), arguments.at(1).as_int(),
                      arguments.size() > 2 ? arguments.at(2).as_int() : 1);
}

/// dill writes a range as text to evaluate: only "range(a, b)" and "range(a, b, c)" are read.
Value eval_repr(CallContext& context, const Arguments& arguments) {
  const std::string& text = arguments.at(0).as_string();
  const auto refuse = [&]() { fail(Errc::refused, "dill._dill._eval_repr({})", quote(text, 40)); };
  std::string_view rest = text;
  if (!rest.starts_with("range(") || !rest.ends_with(")")) refuse();
  rest = rest.substr(6, rest.size() - 7);
  std::vector<int64_t> numbers;
  while (true) {
    int64_t number = 0;
    auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error != std::errc{}) refuse();
    numbers.push_back(number);
    if (numbers.size() > 3) refuse();
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (rest.empty()) break;
    if (!rest.starts_with(", ")) refuse();
    rest.remove_prefix(2);
  }
  if (numbers.size() < 2) refuse();
  return range_object(context, numbers[0], numbers[1], numbers.size() == 3 ? numbers[2] : 1);
}

Value load_type(CallContext& context, const Arguments& arguments) {
  const std::string& name = arguments.at(0).as_string();
  const auto type = builtin_type(name);
  if (!type) fail(Errc::refused, "dill._dill._load_type({})", quote(name, 40));
  return context.arena.object("class", *type);
}

Value make_device(CallContext& context, const Arguments& arguments) {
  std::string device = arguments.at(0).as_string();
  if (arguments.size() > 1 && !arguments.at(1).is_none())
    device += ":" + std::to_string(arguments.at(1).as_int());
  return context.arena.object("torch.device", std::move(device));
}

Value make_layout(CallContext& context, const Arguments& arguments) {
  const std::string& name = arguments.at(0).as_string();
  const auto meaning = find_global(name, false);
  if (meaning != Meaning::layout) fail(Errc::format, "{} is not a layout", quote(name));
  return context.arena.object("torch.layout", name);
}

Value make_size(CallContext& context, const Arguments& arguments) {
  (void)shape_of(arguments.at(0));
  return context.arena.sequence(Sequence::Kind::torch_size, arguments.at(0).as_sequence().items);
}

/// copyreg._reconstructor(cls, object, None): an instance without state, as protocols 0 and 1 write it.
Value reconstruct(CallContext& context, const Arguments& arguments) {
  const std::string& type = expect_object(arguments.at(0), "class").repr;
  const auto meaning = find_global(type, context.options.dill);
  const UnpickleOptions& options = context.options;
  const bool is_allowed = options.allow_records && !is_forbidden_module(type);
  const bool is_record = meaning ? *meaning == Meaning::record : is_allowed || options.describes;
  if (!is_record) fail(Errc::refused, "{}", type);
  Value made = context.arena.object(type);
  made.as_object().is_inert = !meaning && !is_allowed;
  return made;
}

/// Whether the attributes of an instance of a subclass of dict, list or tuple may be left out, with a
/// warning.
bool leaves_out(CallContext& context, const Value& target) {
  if (context.options.describes && context.options.warn && !std::exchange(context.has_left_out, true))
    context.options.warn(fmt::format("the attributes of {} are left out", a_kind(target)));
  return context.options.describes;
}

}  // namespace

Arguments::Arguments(const Value& tuple) : items_(tuple.as_sequence().items) {}

const Value& Arguments::at(size_t i) const {
  if (i >= items_.size()) fail(Errc::format, "argument {} is missing", i + 1);
  return items_[i];
}

const Object& expect_object(const Value& value, std::string_view type) {
  if (value.is(Value::Kind::object) && value.as_object().type == type) return value.as_object();
  fail(Errc::format, "expected a {}, found {}", type, a_kind(value));
}

Value call(CallContext& context, Meaning meaning, const std::string& global, const Value& tuple) {
  const Arguments arguments(tuple);
  switch (meaning) {
    case Meaning::list:
      return make_sequence(context, Sequence::Kind::list, arguments);
    case Meaning::tuple:
      return make_sequence(context, Sequence::Kind::tuple, arguments);
    case Meaning::set:
      return make_sequence(context, Sequence::Kind::set, arguments);
    case Meaning::frozenset:
      return make_sequence(context, Sequence::Kind::frozenset, arguments);
    case Meaning::deque:
      return make_deque(context, arguments);
    case Meaning::dict:
      return make_dict(context, Dict::Kind::dict, arguments.find(0));
    case Meaning::ordered_dict:
      return make_dict(context, Dict::Kind::ordered, arguments.find(0));
    case Meaning::counter:
      return make_dict(context, Dict::Kind::counter, arguments.find(0));
    case Meaning::defaultdict:
      return make_defaultdict(context, arguments);
    case Meaning::bytes:
      return make_bytes(context, false, arguments);
    case Meaning::bytearray:
      return make_bytes(context, true, arguments);
    case Meaning::integer:
      return arguments.size() == 0 ? Value(0) : make_integer(arguments.at(0));
    case Meaning::real:
      return arguments.size() == 0 ? Value(0.0) : Value(arguments.at(0).as_double());
    case Meaning::boolean:
      return arguments.size() != 0 && arguments.at(0).as_bool();
    case Meaning::complex:
      return make_complex(arguments);
    case Meaning::range:
      return make_range(context, arguments);
    case Meaning::encode:
      return encode(context, arguments);
    case Meaning::reconstructor:
      return reconstruct(context, arguments);
    case Meaning::size:
      return make_size(context, arguments);
    case Meaning::device:
      return make_device(context, arguments);
    case Meaning::get_layout:
      return make_layout(context, arguments);
    case Meaning::rebuild_tensor:
      return rebuild_tensor(context, arguments);
    case Meaning::rebuild_tensor_v3:
      return rebuild_tensor_v3(context, arguments);
    case Meaning::rebuild_parameter:
      return rebuild_parameter(context, arguments);
    case Meaning::rebuild_sparse:
      return rebuild_sparse(context, arguments);
    case Meaning::rebuild_sparse_csr:
      return rebuild_sparse_csr(context, arguments);
    case Meaning::rebuild_quantized:
      return rebuild_quantized(context, arguments);
    case Meaning::rebuild_from_numpy:
    case Meaning::rebuild_from_cpu:
      return rebuild_converted(context, arguments);
    case Meaning::rebuild_meta:
      return rebuild_meta(context, arguments);
    case Meaning::rebuild_from_type:
      return rebuild_from_type(context, arguments);
    case Meaning::numpy_reconstruct:
      return numpy_reconstruct(context, arguments);
    case Meaning::numpy_scalar:
      return numpy_scalar(context, arguments);
    case Meaning::numpy_dtype:
      return numpy_dtype(context, arguments);
    case Meaning::numpy_frombuffer:
      return numpy_frombuffer(context, arguments);
    case Meaning::dill_load_type:
      return load_type(context, arguments);
    case Meaning::dill_eval_repr:
      return eval_repr(context, arguments);
    case Meaning::record:
      if (arguments.size() != 0) fail(Errc::format, "{} takes no arguments", global);
      return context.arena.object(global);
    case Meaning::dtype:
    case Meaning::layout:
    case Meaning::qscheme:
    case Meaning::storage_class:
    case Meaning::class_only:
      break;
  }
  fail(Errc::format, "{} cannot be called", global);
}

void set_attributes(CallContext& context, Object& record, const Value& state) {
  const bool is_sequence = state.is(Value::Kind::sequence);
  if (state.is_none() || (is_sequence && state.as_sequence().items.empty())) return;
  record.is_record = true;
  if (record.state.is_none()) record.state = context.arena.dict();
  Dict& attributes = record.state.as_dict();
  if (state.is(Value::Kind::dict)) {
    for (const auto& [name, value] : state.as_dict().entries())
      context.arena.set_item(attributes, name, value);
  } else if (is_sequence && attributes.empty()) {
    const auto& items = state.as_sequence().items;
    const auto is_part = [](const Value& item) { return item.is_none() || item.is(Value::Kind::dict); };
    if (items.size() == 2 && is_part(items[0]) && items[1].is(Value::Kind::dict)) {  // attributes and slots
      set_attributes(context, record, items[0]);
      return set_attributes(context, record, items[1]);
    }
    for (size_t i = 0; i < items.size(); ++i)
      context.arena.set_item(attributes, static_cast<int64_t>(i), items[i]);
  } else {
    context.arena.set_item(attributes, "state", state);
  }
}

Value build(CallContext& context, const Value& target, const Value& state) {
  switch (target.kind()) {
    case Value::Kind::dict: {
      Dict& dict = target.as_dict();
      if (dict.kind != Dict::Kind::ordered && leaves_out(context, target)) return target;
      if (dict.kind != Dict::Kind::ordered) fail(Errc::format, "{} cannot have a state", a_kind(target));
      if (!state.is(Value::Kind::dict))
        fail(Errc::format, "the state of an OrderedDict should be a dict, not {}", a_kind(state));
      dict.attributes = state;
      return target;
    }
    case Value::Kind::tensor: {
      auto found = context.unfinished_arrays.find(target.identity());
      if (found == context.unfinished_arrays.end()) {
        fail(Errc::unsupported, "tensors as Python 2 saved them; save the file again with a newer torch");
      }
      return build_numpy_array(context, found->second, state);
    }
    case Value::Kind::object: {
      Object& object = target.as_object();
      if (object.type == "numpy.dtype") {
        build_numpy_dtype(object, state);
        return target;
      }
      if (object.is_inert) {
        set_attributes(context, object, state);
        return target;
      }
      const auto meaning = find_global(object.type, context.options.dill);
      const bool is_record =
          meaning ? *meaning == Meaning::record
                  : object.type.find('.') != std::string::npos && !is_forbidden_module(object.type);
      if (!is_record || !object.state.is_none()) break;
      object.state = state;
      object.is_record = true;
      return target;
    }
    case Value::Kind::sequence:
      if (leaves_out(context, target)) return target;
      break;
    default:
      break;
  }
  fail(Errc::format, "{} cannot have a state", a_kind(target));
}

}  // namespace cbk::pickle
