#include "host/formats/torch/pickle.hpp"

#include <algorithm>
#include <charconv>
#include <set>

#include "host/base/hash.hpp"
#include "host/formats/torch/calls.hpp"
#include "host/formats/torch/long_integer.hpp"
#include "host/formats/torch/opcodes.hpp"

namespace cbk::torch {
namespace {

/// The type of the stand-in for whatever a refused global would have made; its repr is the global.
constexpr std::string_view refused_type = "refused";

/// Memory for values in proportion to the pickle, so that a small file cannot ask for much.
uint64_t budget_for(size_t pickle_bytes, uint64_t max_bytes) {
  return std::min<uint64_t>(max_bytes, (64ULL << 20) + 64 * static_cast<uint64_t>(pickle_bytes));
}

uint64_t memo_index(std::string_view text) {
  uint64_t index = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc{} || end != text.data() + text.size())
    fail(Errc::format, "{} is no memo index", quote(text));
  return index;
}

/// Picklers number their memo one by one; an index may exceed the number of entries by this much.
constexpr uint64_t memo_slack = 1024;

/// What a pickle does with its memo.
struct MemoUse {
  uint64_t limit = memo_slack;  // of an index
  /// The entries that are ever fetched: a pickler numbers nearly everything and fetches little, and what is
  /// not fetched can be freed early.
  std::vector<bool> fetched;
};

MemoUse memo_use(std::string_view bytes) {
  MemoUse use;
  std::vector<uint64_t> indices;
  try {
    InstructionReader reader(bytes);
    for (Instruction instruction = reader.next(); instruction.op != Op::stop; instruction = reader.next()) {
      switch (instruction.op) {
        case Op::put:
        case Op::binput:
        case Op::long_binput:
        case Op::memoize:
          ++use.limit;
          break;
        case Op::get:
          indices.push_back(memo_index(instruction.text));
          break;
        case Op::binget:
        case Op::long_binget:
          indices.push_back(static_cast<uint64_t>(instruction.number));
          break;
        default:
          break;
      }
    }
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): found again, and told, when the pickle is run
  }
  for (const uint64_t index : indices) {
    if (index >= use.limit) continue;
    if (index >= use.fetched.size()) use.fetched.resize(index + 1);
    use.fetched[index] = true;
  }
  return use;
}

/// UTF-8 where surrogates may stand alone, as Python writes them.
bool is_text(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<uint8_t>(bytes[i]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xc2 && lead < 0xe0 ? 2
                          : lead >= 0xe0 && lead < 0xf0 ? 3
                          : lead >= 0xf0 && lead < 0xf5 ? 4
                                                        : 0;
    if (length == 0 || bytes.size() - i < length) return false;
    for (size_t k = 1; k < length; ++k) {
      if ((static_cast<uint8_t>(bytes[i + k]) & 0xc0) != 0x80) return false;
    }
    const auto second = length > 1 ? static_cast<uint8_t>(bytes[i + 1]) : 0;
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90) ||
        (lead == 0xf4 && second >= 0x90))
      return false;
    i += length;
  }
  return true;
}

class Machine {
 public:
  Machine(std::string_view bytes, const UnpickleOptions& options)
      : bytes_(bytes),
        options_(options),
        reader_(bytes),
        arena_(budget_for(bytes.size(), options.max_bytes)),
        context_{arena_, options, {}},
        memo_use_(memo_use(bytes)) {}

  Value run(size_t* consumed) {
    try {
      interpret();
    } catch (const Error& error) {
      const bool is_opaque = keeps_opaque() && error.code() == Errc::unsupported;
      if (refused_.empty() && !is_opaque) {
        throw Error(error.code(), fmt::format("{} (the pickle's byte {})", error.what(), at_));
      }
      if (is_opaque) return opaque();
    }
    if (!refused_.empty() && keeps_opaque()) return opaque();
    if (!refused_.empty()) refuse();
    if (consumed != nullptr) *consumed = reader_.position();
    const Value result = arena_.release(pop());
    keep_bytes_of_record(result);
    return result;
  }

 private:
  void interpret() {
    for (Instruction instruction = reader_.next(); instruction.op != Op::stop; instruction = reader_.next()) {
      at_ = instruction.offset;
      step(instruction);
    }
    if (stack_.empty()) fail(Errc::format, "the pickle has no value");
  }

  void step(const Instruction& instruction);
  bool step_scalar(const Instruction& instruction);
  bool step_container(const Instruction& instruction);
  bool step_memo(const Instruction& instruction);

  // --- stack
  void push(Value value) { stack_.push_back(std::move(value)); }
  Value pop() {
    if (stack_.size() <= floor()) fail(Errc::format, "the pickle takes a value that is not there");
    Value value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }
  const Value& top() const {
    if (stack_.size() <= floor()) fail(Errc::format, "the pickle uses a value that is not there");
    return stack_.back();
  }
  [[nodiscard]] size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::vector<Value> pop_to_mark() {
    if (marks_.empty()) fail(Errc::format, "the pickle has no mark here");
    const auto begin = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
    std::vector<Value> items(std::make_move_iterator(begin), std::make_move_iterator(stack_.end()));
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }
  std::vector<Value> pop_items(size_t count) {
    std::vector<Value> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }

  // --- memo
  void put(uint64_t index);
  void get(uint64_t index);

  // --- values
  void push_text(std::string_view text);
  void push_int_text(std::string_view text, bool is_long);
  void push_float_text(std::string_view text);
  void push_quoted(std::string_view text);
  void extend(const Value& list, const std::vector<Value>& items);
  void set_items(const Value& dict, const std::vector<Value>& items);

  // --- globals
  void push_global(std::string_view module, std::string_view name);
  void reduce(const Value& callable, const Value& arguments);
  void create(const Value& type, const Value& arguments);
  void set_state();
  void load_persistent(const Value& id);
  /// Runs `body`; once something was refused, its errors only mean that more cannot be known.
  template <typename Body>
  Value attempt(const std::string& global, Body&& body);
  Value refused_value(const std::string& global) { return arena_.object(std::string(refused_type), global); }
  bool is_refused(const Value& value) const {
    return value.is(Value::Kind::object) && value.as_object().type == refused_type;
  }
  void note_refused(const std::string& global) {
    if (seen_.insert(global).second && refused_.size() < 1000) refused_.push_back(global);
  }
  [[nodiscard]] bool keeps_opaque() const { return options_.dill && options_.allow_records; }
  [[noreturn]] void refuse() const;
  [[nodiscard]] Value opaque() const;
  void keep_bytes_of_record(const Value& result) const;

  std::string_view bytes_;
  const UnpickleOptions& options_;
  InstructionReader reader_;
  Arena arena_;
  CallContext context_;
  std::vector<Value> stack_;
  std::vector<size_t> marks_;  // stack heights
  const MemoUse memo_use_;
  uint64_t memo_size_ = 0;  // 1 + the largest index put
  std::vector<Value> memo_;
  std::vector<bool> memo_set_;
  std::unordered_map<const void*, size_t> array_slots_;  // where BUILD must replace an array
  std::unordered_map<std::string, Value, KeyedHash> globals_;
  std::vector<std::string> refused_;
  std::set<std::string> seen_;
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
      if (!marks_.empty() && stack_.size() == marks_.back()) {
        marks_.pop_back();
      } else {
        pop();
      }
      return;
    case Op::pop_mark:
      pop_to_mark();
      return;
    case Op::dup:
      if (top().is(Value::Kind::string)) arena_.charge(top().as_string().size());
      return push(top());
    case Op::global:
      return push_global(instruction.text, instruction.second);
    case Op::stack_global: {
      const Value name = pop();
      const Value module = pop();
      return push_global(module.as_string(), name.as_string());
    }
    case Op::reduce: {
      const Value arguments = pop();
      return reduce(pop(), arguments);
    }
    case Op::newobj: {
      const Value arguments = pop();
      return create(pop(), arguments);
    }
    case Op::newobj_ex: {
      const Value keywords = pop();
      const Value arguments = pop();
      const Value type = pop();
      if (!keywords.as_dict().empty())
        return create(type, arena_.sequence(Sequence::Kind::tuple, {keywords}));
      return create(type, arguments);
    }
    case Op::inst: {
      push_global(instruction.text, instruction.second);
      const Value type = pop();
      return create(type, arena_.sequence(Sequence::Kind::tuple, pop_to_mark()));
    }
    case Op::obj: {
      std::vector<Value> items = pop_to_mark();
      if (items.empty()) fail(Errc::format, "OBJ without a class");
      const Value type = items.front();
      items.erase(items.begin());
      return create(type, arena_.sequence(Sequence::Kind::tuple, std::move(items)));
    }
    case Op::build:
      return set_state();
    case Op::binpersid:
      return load_persistent(pop());
    case Op::persid:
      return load_persistent(Value(instruction.text));
    default:
      fail(Errc::unsupported, "the pickle uses {}", name_of(instruction.op));
  }
}

bool Machine::step_scalar(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::none:
      push({});
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
      arena_.charge(instruction.text.size());
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
      if (!is_text(instruction.text)) fail(Errc::format, "text that is not UTF-8");
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
      if (instruction.text.find('\\') != std::string_view::npos)
        fail(Errc::unsupported, "escapes in the text of protocol 0");
      push_text(instruction.text);
      return true;
    case Op::binbytes:
    case Op::short_binbytes:
    case Op::binbytes8:
      push(arena_.bytes(instruction.text));
      return true;
    case Op::bytearray8:
      push(arena_.bytes(instruction.text, true));
      return true;
    default:
      return false;
  }
}

bool Machine::step_container(const Instruction& instruction) {
  using Kind = Sequence::Kind;
  switch (instruction.op) {
    case Op::mark:
      marks_.push_back(stack_.size());
      return true;
    case Op::empty_list:
      push(arena_.sequence(Kind::list));
      return true;
    case Op::empty_tuple:
      push(arena_.sequence(Kind::tuple));
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
      push(arena_.sequence(Kind::tuple, pop_items(count)));
      return true;
    }
    case Op::tuple:
      push(arena_.sequence(Kind::tuple, pop_to_mark()));
      return true;
    case Op::list:
      push(arena_.sequence(Kind::list, pop_to_mark()));
      return true;
    case Op::frozenset:
      push(arena_.sequence(Kind::frozenset, pop_to_mark()));
      return true;
    case Op::dict: {
      const std::vector<Value> items = pop_to_mark();
      push(arena_.dict());
      set_items(top(), items);
      return true;
    }
    case Op::append: {
      const Value item = pop();
      extend(top(), {item});
      return true;
    }
    case Op::appends:
    case Op::additems: {
      const std::vector<Value> items = pop_to_mark();
      extend(top(), items);
      return true;
    }
    case Op::setitem: {
      const std::vector<Value> items = pop_items(2);
      set_items(top(), items);
      return true;
    }
    case Op::setitems: {
      const std::vector<Value> items = pop_to_mark();
      set_items(top(), items);
      return true;
    }
    default:
      return false;
  }
}

bool Machine::step_memo(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::put:
      put(memo_index(instruction.text));
      return true;
    case Op::binput:
    case Op::long_binput:
      put(static_cast<uint64_t>(instruction.number));
      return true;
    case Op::memoize:
      put(memo_size_);
      return true;
    case Op::get:
      get(memo_index(instruction.text));
      return true;
    case Op::binget:
    case Op::long_binget:
      get(static_cast<uint64_t>(instruction.number));
      return true;
    default:
      return false;
  }
}

void Machine::put(uint64_t index) {
  if (index >= memo_use_.limit) fail(Errc::format, "the memo index {} is too large", index);
  memo_size_ = std::max(memo_size_, index + 1);
  const Value& value = top();
  if (index >= memo_use_.fetched.size() || !memo_use_.fetched[index]) return;
  if (index >= memo_.size()) {
    arena_.charge((index + 1 - memo_.size()) * sizeof(Value));
    memo_.resize(index + 1);
    memo_set_.resize(index + 1);
  }
  if (value.is(Value::Kind::string)) arena_.charge(value.as_string().size());
  memo_[index] = value;
  memo_set_[index] = true;
  if (context_.unfinished_arrays.contains(value.identity())) array_slots_[value.identity()] = index;
}

void Machine::get(uint64_t index) {
  if (index >= memo_.size() || !memo_set_[index]) fail(Errc::format, "there is no memo entry {}", index);
  if (memo_[index].is(Value::Kind::string)) arena_.charge(memo_[index].as_string().size());
  push(memo_[index]);
}

void Machine::push_text(std::string_view text) {
  arena_.charge(text.size());
  // Python 2's str may be anything; what is not text stays bytes.
  push(is_text(text) ? Value(text) : arena_.bytes(text));
}

void Machine::push_int_text(std::string_view text, bool is_long) {
  if (is_long && text.ends_with('L')) text.remove_suffix(1);
  if (!is_long && (text == "00" || text == "01")) return push(text == "01");
  if (text.size() > long_integer_limit) fail(Errc::format, "a whole number of {} digits", text.size());
  push(Value::integer(text));
}

void Machine::push_float_text(std::string_view text) {
  const std::string number(text);
  char* end = nullptr;
  const double real = std::strtod(number.c_str(), &end);
  if (number.empty() || end != number.c_str() + number.size())
    fail(Errc::format, "{} is no number", quote(text));
  push(real);
}

void Machine::push_quoted(std::string_view text) {
  const bool is_quoted =
      text.size() >= 2 && text.front() == text.back() && (text.front() == '\'' || text.front() == '"');
  if (!is_quoted) fail(Errc::format, "{} has no quotes", quote(text));
  if (text.find('\\') != std::string_view::npos) fail(Errc::unsupported, "escapes in the text of protocol 0");
  push_text(text.substr(1, text.size() - 2));
}

void Machine::extend(const Value& list, const std::vector<Value>& items) {
  if (is_refused(list)) return;
  if (!list.is(Value::Kind::sequence)) fail(Errc::format, "items are appended to a {}", list.kind_name());
  Sequence& sequence = list.as_sequence();
  const bool grows = sequence.kind == Sequence::Kind::list || sequence.kind == Sequence::Kind::set ||
                     sequence.kind == Sequence::Kind::deque;
  if (!grows) fail(Errc::format, "items are appended to a {}", list.kind_name());
  arena_.charge(items.size() * sizeof(Value));
  sequence.items.insert(sequence.items.end(), items.begin(), items.end());
}

void Machine::set_items(const Value& dict, const std::vector<Value>& items) {
  if (is_refused(dict)) return;
  if (items.size() % 2 != 0) fail(Errc::format, "a dict's key has no value");
  if (!dict.is(Value::Kind::dict)) fail(Errc::format, "items are set in a {}", dict.kind_name());
  for (size_t i = 0; i < items.size(); i += 2) arena_.set_item(dict.as_dict(), items[i], items[i + 1]);
}

void Machine::push_global(std::string_view module, std::string_view name) {
  const std::string global = canonical_global(module, name);
  if (auto found = globals_.find(global); found != globals_.end()) return push(found->second);
  const auto meaning = find_global(global, options_.dill);
  if (!meaning && (!options_.allow_records || is_forbidden_module(global))) {
    note_refused(global);
    return push(globals_[global] = refused_value(global));
  }
  std::string_view type = "class";
  if (meaning == Meaning::dtype) type = "torch.dtype";
  if (meaning == Meaning::layout) type = "torch.layout";
  if (meaning == Meaning::qscheme) type = "torch.qscheme";
  push(globals_[global] = arena_.object(std::string(type), global));
}

template <typename Body>
Value Machine::attempt(const std::string& global, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() == Errc::refused) {
      note_refused(error.what());
      return refused_value(error.what());
    }
    if (!refused_.empty()) return refused_value(global);
    if (error.code() == Errc::unsupported) throw;
    fail(Errc::format, "{}: {}", quote(global, 80), error.what());
  }
}

void Machine::reduce(const Value& callable, const Value& arguments) {
  if (is_refused(callable)) return push(callable);
  const std::string& global = expect_object(callable, "class").repr;
  push(attempt(global, [&] {
    const auto meaning = find_global(global, options_.dill);
    if (!meaning || *meaning == Meaning::record)
      fail(Errc::refused, "{}", global);  // records are made by NEWOBJ only
    return call(context_, *meaning, global, arguments);
  }));
}

void Machine::create(const Value& type, const Value& arguments) {
  if (is_refused(type)) return push(type);
  const std::string& global = expect_object(type, "class").repr;
  push(attempt(global, [&] {
    const auto meaning = find_global(global, options_.dill);
    if (meaning) return call(context_, *meaning, global, arguments);
    if (Arguments(arguments).size() == 0) return arena_.object(global);
    if (options_.dill) fail(Errc::refused, "{}", global);
    // A class that is made of its arguments alone, as a namedtuple is.
    const Value instance = arena_.sequence(Sequence::Kind::tuple, arguments.as_sequence().items);
    instance.as_sequence().type = global;
    return instance;
  }));
}

void Machine::set_state() {
  const Value state = pop();
  const Value target = top();
  if (is_refused(target)) return;
  const Value built = attempt(target.kind_name(), [&] { return build(context_, target, state); });
  if (built.same(target)) return;
  stack_.back() = built;
  if (auto slot = array_slots_.find(target.identity()); slot != array_slots_.end())
    memo_[slot->second] = built;
}

void Machine::load_persistent(const Value& id) {
  push(attempt("a persistent id", [&]() -> Value {
    if (!options_.persistent_load) fail(Errc::format, "a persistent id where none belongs");
    return options_.persistent_load(id);
  }));
}

void Machine::refuse() const {
  std::vector<std::string> shown;
  for (const std::string& name : refused_) shown.push_back(quote(name, 60));
  size_t fits = 0;  // a message stays a line
  for (size_t length = 0; fits < shown.size() && (length += shown[fits].size() + 2) < 300;) ++fits;
  const bool may_be_records = !options_.allow_records && std::ranges::none_of(refused_, is_forbidden_module);
  fail(Errc::refused, "the pickle asks for {}, which {} not plain data; nothing was executed{}",
       listed(shown, std::max<size_t>(fits, 1)), shown.size() == 1 ? "is" : "are",
       may_be_records ? "; cbk.open(path, { allow_records = true }) reads instances of classes as records"
                      : "");
}

/// The whole pickle as one object with its bytes; what made the outermost value tells its class.
Value Machine::opaque() const {
  InstructionReader reader(bytes_);
  while (reader.next().op != Op::stop) {
  }
  std::string type = "object";
  if (stack_.size() == 1) {
    type = is_refused(stack_.back()) ? stack_.back().as_object().repr : stack_.back().kind_name();
  }
  return std::make_shared<Object>(Object{type, {}, {}, std::string(bytes_.substr(0, reader.position()))});
}

void Machine::keep_bytes_of_record(const Value& result) const {
  if (!keeps_opaque() || !result.is(Value::Kind::object)) return;
  Object& object = result.as_object();
  if (!find_global(object.type, true) && object.type.find('.') != std::string::npos &&
      object.type != "builtins.range") {
    object.pickle = std::string(bytes_.substr(0, reader_.position()));
  }
}

}  // namespace

Value unpickle(std::string_view bytes, const UnpickleOptions& options, size_t* consumed) {
  return Machine(bytes, options).run(consumed);
}

}  // namespace cbk::torch
