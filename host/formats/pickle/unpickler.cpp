#include "host/formats/pickle/unpickler.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "host/base/hash.hpp"
#include "host/base/utf8.hpp"
#include "host/formats/pickle/calls.hpp"
#include "host/formats/pickle/long_integer.hpp"
#include "host/formats/pickle/memo.hpp"
#include "host/formats/pickle/opcodes.hpp"
#include "host/formats/pickle/refused_globals.hpp"
#include "host/formats/pickle/repeated_states.hpp"
#include "host/formats/pickle/stack.hpp"
#include "host/formats/pickle/text_escapes.hpp"
#include "host/value/kind.hpp"

namespace cbk::pickle {
namespace {

/// The type of the placeholder for a refused global's result; its repr is the global.
constexpr std::string_view refused_type = "refused";

/// Gets any function by its name. Python's enums are pickled with it.
constexpr std::string_view member_lookup = "builtins.getattr";

/// The memory of an integer of this many bytes, kept as decimal digits.
uint64_t digits_bytes(size_t bytes) {
  return 80 + 5 * bytes / 2;
}

/// Protocol 4 has dots in the names of nested classes, but also of a module's imports: "_os.system".
bool is_class_name(std::string_view name) {
  const auto begins_a_class = [&](size_t at) {
    return at < name.size() && std::isupper(static_cast<unsigned char>(name[at])) != 0;
  };
  return name.find('.') == std::string_view::npos ||
         (begins_a_class(0) && begins_a_class(name.find_last_of('.') + 1));
}

class Machine {
 public:
  Machine(std::string_view bytes, const UnpickleOptions& options)
      : bytes_(bytes),
        options_(options),
        reader_(bytes),
        own_budget_(bytes.size()),
        budget_(options.budget != nullptr ? *options.budget : own_budget_),
        texts_(budget_, bytes.size()),
        stack_(budget_),
        arena_(budget_),
        context_{arena_, options, {}, false},
        memo_(bytes, arena_),
        states_(memo_, arena_) {}

  Value run(size_t* consumed) {
    try {
      interpret();
    } catch (const Error& error) {
      if (refused_.empty()) {
        ErrorParts parts = error.parts();
        parts.problem += fmt::format(" (at byte {} of the pickle)", at_);
        throw Error(error.code(), std::move(parts));
      }
    }
    if (!refused_.empty()) refused_.fail_with_all(!options_.allow_records && !options_.describes);
    if (consumed != nullptr) *consumed = reader_.position();
    if (std::string replaced = arena_.replaced(); options_.warn && !replaced.empty())
      options_.warn(std::move(replaced));
    return arena_.release(stack_.pop());
  }

 private:
  void interpret() {
    for (Instruction instruction = reader_.next(); instruction.op != Op::stop; instruction = reader_.next()) {
      at_ = instruction.offset;
      step(instruction);
    }
    if (stack_.values().empty()) fail(Errc::format, "the pickle has no value");
  }

  void step(const Instruction& instruction);
  bool step_scalar(const Instruction& instruction);
  bool step_container(const Instruction& instruction);
  bool step_memo(const Instruction& instruction);

  template <typename Content>
  void push(Content&& content) {
    stack_.push(std::forward<Content>(content));
  }
  void put(uint64_t index);

  // --- values
  void push_text(std::string_view text);
  void push_int_text(std::string_view text, bool is_long);
  void push_float_text(std::string_view text);
  void push_quoted(std::string_view text);
  void extend(Sequence::Kind kind, const std::vector<Value>& items);
  void set_items(std::vector<Value> items);
  template <typename Make>
  Value filled(Make&& make);
  void replace_top(const Value& made);

  // --- globals
  void push_global(std::string_view module, std::string_view name);
  void reduce(const Value& callable, const Value& arguments);
  void create(const Value& type, const Value& arguments);
  bool create_with_state();
  Value described_call(const std::string& global, const Value& arguments);
  Value instance(const std::string& type, std::string repr, Value state, bool is_inert);
  /// The instance that was replaced; nullptr: none was.
  const void* set_state();
  void load_persistent(const Value& id);
  /// Runs `body`. After a refusal, its errors only mean that no more can be found out.
  template <typename Body>
  Value attempt(const std::string& global, Body&& body);
  Value refused_value(const std::string& global) { return arena_.object(std::string(refused_type), global); }
  bool is_refused(const Value& value) const {
    return value.is(Value::Kind::object) && value.as_object().type == refused_type;
  }

  std::string_view bytes_;
  const UnpickleOptions& options_;
  InstructionReader reader_;
  MemoryBudget own_budget_;
  MemoryBudget& budget_;
  MemoryLoan texts_;  // those of the pickle, in it and among the values
  Stack stack_;
  Arena arena_;
  CallContext context_;
  Memo memo_;
  RepeatedStates states_;  // of what is replaced
  /// Of classes that are not plain data, without content; kept, so that nothing else is at their addresses.
  std::unordered_map<const void*, Value> empty_instances_;
  std::unordered_map<const void*, size_t> slots_;  // where what is replaced later can be fetched
  std::unordered_map<std::string, Value, KeyedHash> globals_;
  RefusedGlobals refused_;
  uint64_t at_ = 0;
};

void Machine::step(const Instruction& instruction) {
  if (step_scalar(instruction) || step_container(instruction) || step_memo(instruction)) return;
  switch (instruction.op) {
    case Op::proto:
      if (instruction.number > 5) fail(Errc::unsupported, "pickle protocol {}", instruction.number);
      return;
    case Op::frame:
      return;
    case Op::pop:
      stack_.pop_or_unmark();
      return;
    case Op::pop_mark:
      stack_.pop_to_mark();
      return;
    case Op::dup:
      if (stack_.top().is(Value::Kind::string)) arena_.charge(stack_.top().as_string().size());
      return push(stack_.top());
    case Op::global:
      return push_global(instruction.text, instruction.second);
    case Op::stack_global: {
      const Value name = stack_.pop();
      const Value module = stack_.pop();
      return push_global(module.as_string(), name.as_string());
    }
    case Op::reduce: {
      const Value arguments = stack_.pop();
      return reduce(stack_.pop(), arguments);
    }
    case Op::newobj: {
      const Value arguments = stack_.pop();
      return create(stack_.pop(), arguments);
    }
    case Op::newobj_ex: {
      const Value keywords = stack_.pop();
      const Value arguments = stack_.pop();
      const Value type = stack_.pop();
      if (!keywords.as_dict().empty())
        return create(type, arena_.sequence(Sequence::Kind::tuple, {keywords}));
      return create(type, arguments);
    }
    case Op::inst: {
      push_global(instruction.text, instruction.second);
      const Value type = stack_.pop();
      return create(type, arena_.sequence(Sequence::Kind::tuple, stack_.pop_to_mark()));
    }
    case Op::obj: {
      std::vector<Value> items = stack_.pop_to_mark();
      if (items.empty()) fail(Errc::format, "OBJ without a class");
      const Value type = items.front();
      items.erase(items.begin());
      return create(type, arena_.sequence(Sequence::Kind::tuple, std::move(items)));
    }
    case Op::build:
      if (const void* replaced = set_state()) arena_.free_since(replaced);
      return;
    case Op::binpersid:
      return load_persistent(stack_.pop());
    case Op::persid:
      // Such ids are Python's repr of values that other protocols contain: they cannot identify a tensor.
      fail(Errc::unsupported,
           "tensors of pickle protocol 0, which torch.load cannot read either; save again with another one");
    default:
      fail(Errc::unsupported, "the pickle uses {}", name_of(instruction.op));
  }
}

bool Machine::step_scalar(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::none:
      push(Value());
      return true;
    case Op::newtrue:
    case Op::newfalse:
      push(instruction.op == Op::newtrue);
      return true;
    case Op::binint:
    case Op::binint1:
    case Op::binint2:
      push(instruction.number);
      return true;
    case Op::long1:
    case Op::long4:
      if (instruction.text.size() > sizeof(int64_t)) arena_.charge(digits_bytes(instruction.text.size()));
      push(decode_long(instruction.text));
      return true;
    case Op::binfloat:
      push(std::bit_cast<double>(instruction.number));
      return true;
    case Op::int_text:
    case Op::long_text:
      push_int_text(instruction.text, instruction.op == Op::long_text);
      return true;
    case Op::float_text:
      push_float_text(instruction.text);
      return true;
    case Op::binunicode:
    case Op::short_binunicode:
    case Op::binunicode8:
      if (!is_utf8(instruction.text)) fail(Errc::format, "text that is not UTF-8");
      push_text(instruction.text);
      return true;
    case Op::binstring:
    case Op::short_binstring:
      push_text(instruction.text);
      return true;
    case Op::string_text:
      push_quoted(instruction.text);
      return true;
    case Op::unicode_text:
      push_text(decode_unicode_line(instruction.text));
      return true;
    case Op::binbytes:
    case Op::short_binbytes:
    case Op::binbytes8:
      push(arena_.bytes(std::string(instruction.text)));
      return true;
    case Op::bytearray8:
      push(arena_.bytes(std::string(instruction.text), true));
      return true;
    default:
      return false;
  }
}

bool Machine::step_container(const Instruction& instruction) {
  using Kind = Sequence::Kind;
  switch (instruction.op) {
    case Op::mark:
      stack_.mark();
      return true;
    case Op::empty_list:
      push(arena_.sequence(Kind::list));
      return true;
    case Op::empty_tuple:
      if (!create_with_state()) push(arena_.sequence(Kind::tuple));
      return true;
    case Op::empty_set:
      push(arena_.sequence(Kind::set));
      return true;
    case Op::empty_dict:
      push(arena_.dict());
      return true;
    case Op::tuple1:
    case Op::tuple2:
    case Op::tuple3: {
      const auto count = static_cast<size_t>(instruction.op) - static_cast<size_t>(Op::tuple1) + 1;
      push(arena_.sequence(Kind::tuple, stack_.pop(count)));
      return true;
    }
    case Op::tuple:
      push(arena_.sequence(Kind::tuple, stack_.pop_to_mark()));
      return true;
    case Op::list:
      push(arena_.sequence(Kind::list, stack_.pop_to_mark()));
      return true;
    case Op::frozenset:
      push(arena_.sequence(Kind::frozenset, stack_.pop_to_mark()));
      return true;
    case Op::dict: {
      std::vector<Value> items = stack_.pop_to_mark();
      push(arena_.dict());
      set_items(std::move(items));
      return true;
    }
    case Op::append: {
      extend(Kind::list, {stack_.pop()});
      return true;
    }
    case Op::appends:
    case Op::additems:
      extend(instruction.op == Op::appends ? Kind::list : Kind::set, stack_.pop_to_mark());
      return true;
    case Op::setitem:
      set_items(stack_.pop(2));
      return true;
    case Op::setitems:
      set_items(stack_.pop_to_mark());
      return true;
    default:
      return false;
  }
}

bool Machine::step_memo(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::put:
      put(Memo::parse_index(instruction.text));
      return true;
    case Op::binput:
    case Op::long_binput:
      put(static_cast<uint64_t>(instruction.number));
      return true;
    case Op::memoize:
      put(memo_.next());
      return true;
    case Op::get:
      push(memo_.get(Memo::parse_index(instruction.text)));
      return true;
    case Op::binget:
    case Op::long_binget:
      push(memo_.get(static_cast<uint64_t>(instruction.number)));
      return true;
    default:
      return false;
  }
}

void Machine::put(uint64_t index) {
  const void* node = stack_.top().identity();
  const bool is_kept = memo_.put(index, stack_.top());
  if (is_kept && (context_.unfinished_arrays.contains(node) || empty_instances_.contains(node)))
    slots_[node] = index;
}

void Machine::push_text(std::string_view text) {
  // Python 2's str may contain anything; if it is not text, it stays bytes.
  push(is_utf8(text) ? Value(text) : arena_.bytes(std::string(text)));
}

void Machine::push_int_text(std::string_view text, bool is_long) {
  if (is_long && text.ends_with('L')) text.remove_suffix(1);
  if (!is_long && (text == "00" || text == "01")) return push(text == "01");
  if (text.size() > long_integer_limit) fail(Errc::format, "a whole number of {} digits", text.size());
  if (text.size() > 18) arena_.charge(digits_bytes(text.size() / 2));
  push(Value::integer(text));
}

void Machine::push_float_text(std::string_view text) {
  const std::string number(text);
  char* end = nullptr;
  const double real = std::strtod(number.c_str(), &end);
  if (number.empty() || end != number.c_str() + number.size())
    fail(Errc::format, "{} is not a number", quote(text));
  push(real);
}

void Machine::push_quoted(std::string_view text) {
  const bool is_quoted =
      text.size() >= 2 && text.front() == text.back() && (text.front() == '\'' || text.front() == '"');
  if (!is_quoted) fail(Errc::format, "{} has no quotes", quote(text));
  push_text(decode_string_line(text.substr(1, text.size() - 2)));
}

/// Replaces the value on top, also where it can be fetched again.
void Machine::replace_top(const Value& made) {
  if (auto slot = slots_.find(stack_.top().identity()); slot != slots_.end()) {
    memo_.replace(slot->second, made);
    slots_.erase(slot);  // the next value may be at the same address
  }
  stack_.replace_top(made);
}

/// The container on top. An instance that gets items is one of a subclass of dict or list: it becomes what
/// `make` returns.
template <typename Make>
Value Machine::filled(Make&& make) {
  const Value& top = stack_.top();
  if (!top.is(Value::Kind::object) || empty_instances_.erase(top.identity()) == 0) return top;
  Value made = make();
  replace_top(made);
  return made;
}

void Machine::extend(Sequence::Kind kind, const std::vector<Value>& items) {
  if (is_refused(stack_.top())) return;
  const Value list = filled([&] { return arena_.sequence(kind); });
  if (!list.is(Value::Kind::sequence)) fail(Errc::format, "items are appended to {}", a_kind(list));
  Sequence& sequence = list.as_sequence();
  const bool grows = sequence.kind == Sequence::Kind::list || sequence.kind == Sequence::Kind::set ||
                     sequence.kind == Sequence::Kind::deque;
  if (!grows) fail(Errc::format, "items are appended to {}", a_kind(list));
  arena_.charge(items.size() * sizeof(Value));
  sequence.items.insert(sequence.items.end(), items.begin(), items.end());
}

void Machine::set_items(std::vector<Value> items) {
  if (is_refused(stack_.top())) return;
  const Value dict = filled([&] { return arena_.dict(); });
  if (items.size() % 2 != 0) fail(Errc::format, "a dict's key has no value");
  if (!dict.is(Value::Kind::dict)) fail(Errc::format, "items are set in {}", a_kind(dict));
  if (dict.as_dict().empty()) dict.as_dict().reserve(items.size() / 2);
  for (size_t i = 0; i < items.size(); i += 2) {
    arena_.set_item(dict.as_dict(), std::move(items[i]), std::move(items[i + 1]));
  }
}

void Machine::push_global(std::string_view module, std::string_view name) {
  const std::string global = canonical_global(module, name);
  if (auto found = globals_.find(global); found != globals_.end()) return push(found->second);
  const auto meaning = find_global(global, options_.dill);
  const bool is_class = is_class_name(name);
  const bool is_allowed = options_.allow_records && is_class && !is_forbidden_module(global);
  const bool is_described =
      options_.describes && is_class && (is_harmless(global) || global == member_lookup);
  if (!meaning && !is_allowed && !is_described) {
    refused_.note(global);
    return push(globals_[global] = refused_value(global));
  }
  std::string_view type = "class";
  if (meaning == Meaning::dtype) type = "torch.dtype";
  if (meaning == Meaning::layout) type = "torch.layout";
  if (meaning == Meaning::qscheme) type = "torch.qscheme";
  arena_.charge(global.size() + sizeof(Value));
  const Value named = arena_.object(std::string(type), global);
  named.as_object().is_inert = !meaning && !is_allowed;
  push(globals_[global] = named);
}

template <typename Body>
Value Machine::attempt(const std::string& global, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() == Errc::refused) {
      refused_.note(error.what());
      return refused_value(error.what());
    }
    if (!refused_.empty()) return refused_value(global);
    if (error.code() == Errc::unsupported) throw;
    throw Error(Errc::format, error.parts()).in(quote(global, 80));
  }
}

void Machine::reduce(const Value& callable, const Value& arguments) {
  if (is_refused(callable)) return push(callable);
  const std::string& global = expect_object(callable, "class").repr;
  push(attempt(global, [&] {
    const auto meaning = find_global(global, options_.dill);
    if (!meaning && options_.describes) return described_call(global, arguments);
    if (!meaning || *meaning == Meaning::record)
      fail(Errc::refused, "{}", global);  // records are made by NEWOBJ only
    return call(context_, *meaning, global, arguments);
  }));
}

/// A call that is not made: a record of what is called, with the arguments by their numbers. A member of a
/// class or of an instance is the only lookup by name that is described: enums and methods are pickled as
/// such.
Value Machine::described_call(const std::string& global, const Value& arguments) {
  if (global != member_lookup) {
    Value made = instance(global, "", {}, true);
    set_attributes(context_, made.as_object(), arguments);
    return made;
  }
  const Value& owner = Arguments(arguments).at(0);
  const std::string& name = Arguments(arguments).at(1).as_string();
  if (!owner.is(Value::Kind::object) || name.starts_with("__")) fail(Errc::refused, "{}", global);
  const Object& object = owner.as_object();
  const std::string& type = object.type == "class" ? object.repr : object.type;
  if (find_global(type, options_.dill) || type == "torch.dtype") fail(Errc::refused, "{}", global);
  return instance(type, name, {}, true);
}

Value Machine::instance(const std::string& type, std::string repr, Value state, bool is_inert) {
  Value made = arena_.object(type, std::move(repr), std::move(state));
  made.as_object().is_inert = is_inert;
  empty_instances_.emplace(made.identity(), made);
  return made;
}

void Machine::create(const Value& type, const Value& arguments) {
  if (is_refused(type)) return push(type);
  const std::string& global = expect_object(type, "class").repr;
  push(attempt(global, [&] {
    const bool is_inert = type.as_object().is_inert;  // then no global of that name is data
    const auto meaning = is_inert ? std::nullopt : find_global(global, options_.dill);
    if (meaning) return call(context_, *meaning, global, arguments);
    if (Arguments(arguments).size() == 0) return instance(global, "", {}, is_inert);
    if (options_.dill) fail(Errc::refused, "{}", global);
    // A class that is created from its arguments alone, such as a namedtuple.
    arena_.charge(global.size());
    Value instance = arena_.sequence(Sequence::Kind::tuple, arguments.as_sequence().items);
    instance.as_sequence().type = global;
    return instance;
  }));
}

/// An instance of the class on top without arguments that `options_.replace` replaces, with its state at
/// once; false: its opcodes are read one by one.
bool Machine::create_with_state() {
  if (!options_.replace || reader_.next_op() != Op::newobj) return false;
  const Value& type = stack_.top();
  if (!type.is(Value::Kind::object) || type.as_object().type != "class" || !type.as_object().is_inert)
    return false;
  const std::string& name = type.as_object().repr;
  const Value* state = states_.next(name, reader_);
  if (state == nullptr) return false;
  at_ = reader_.position() - 1;
  stack_.replace_top(options_.replace(name, *state).value());
  return true;
}

const void* Machine::set_state() {
  const Value state = stack_.pop();
  const Value target = stack_.top();
  if (is_refused(target)) return nullptr;
  const bool is_new = empty_instances_.erase(target.identity()) > 0;
  if (is_new && options_.replace && target.as_object().is_inert) {
    if (const auto made = options_.replace(target.as_object().type, state)) {
      replace_top(*made);
      states_.note(target.as_object().type, state);
      return target.identity();
    }
  }
  const Value built = attempt(target.kind_name(), [&] { return build(context_, target, state); });
  if (!built.same(target)) {
    replace_top(built);
  } else {
    slots_.erase(target.identity());
  }
  return nullptr;
}

void Machine::load_persistent(const Value& id) {
  push(attempt("a persistent id", [&]() -> Value {
    if (!options_.persistent_load) fail(Errc::format, "an unexpected persistent id");
    const Value loaded = options_.persistent_load(id);
    return loaded.is(Value::Kind::object) && loaded.as_object().type == "class" ? loaded
                                                                                : arena_.keep_storage(loaded);
  }));
}

}  // namespace

Value load(std::string_view bytes, const UnpickleOptions& options, size_t* consumed) {
  return Machine(bytes, options).run(consumed);
}

}  // namespace cbk::pickle
