#include "host/formats/pickle/repeated_states.hpp"

#include <algorithm>

#include "host/base/utf8.hpp"
#include "host/formats/pickle/long_integer.hpp"

namespace cbk::pickle {
namespace {

constexpr size_t most_forms = 16;
constexpr size_t most_names = 16;
constexpr size_t longest_text = 1024;
constexpr size_t most_dims = 64;

bool is_size(const Value& value) {
  return value.is(Value::Kind::sequence) && value.as_sequence().kind == Sequence::Kind::torch_size;
}

bool is_size_class(const Value& value) {
  return value.is(Value::Kind::object) && value.as_object().type == "class" &&
         value.as_object().repr == "torch.Size";
}

/// Reads a state, one instruction ahead. Each function returns false for what has another form.
class Probe {
 public:
  Probe(const InstructionReader& reader, const Memo& memo, Arena& arena)
      : reader_(reader), memo_(memo), arena_(arena), next_(memo.next()) {
    step();
  }

  bool state(const std::vector<std::string>& names, const std::vector<Value*>& values) {
    if (!pass(Op::newobj) || !pass_number() || !pass(Op::empty_dict) || !pass_number() || !pass(Op::mark))
      return false;
    for (size_t i = 0; i < names.size(); ++i)
      if (!name(names[i]) || !value(*values[i])) return false;
    return pass(Op::setitems) && now_.op == Op::build;
  }

  /// Of what follows BUILD.
  [[nodiscard]] const InstructionReader& rest() const { return reader_; }
  void number_values(Memo& memo) const {
    memo.pass_to(next_);
    for (const auto& [index, value] : kept_) memo.put(index, value);
  }

 private:
  void step() { now_ = reader_.next(); }

  bool pass(Op op) {
    if (now_.op != op) return false;
    step();
    return true;
  }

  /// The number that the last value gets.
  [[nodiscard]] std::optional<uint64_t> number() const {
    if (now_.op == Op::memoize) return next_;
    const bool is_put = now_.op == Op::binput || now_.op == Op::long_binput;
    return is_put ? std::optional(static_cast<uint64_t>(now_.number)) : std::nullopt;
  }

  void pass_number(uint64_t index) {
    next_ = std::max(next_, index + 1);
    step();
  }

  bool pass_number() {
    const auto index = number();
    if (!index) return true;
    if (memo_.keeps(*index)) return false;
    pass_number(*index);
    return true;
  }

  [[nodiscard]] bool is_text() const { return now_.op == Op::short_binunicode || now_.op == Op::binunicode; }

  /// The value that is fetched; nullptr: none is.
  [[nodiscard]] const Value* fetched() const {
    if (now_.op != Op::binget && now_.op != Op::long_binget) return nullptr;
    const auto index = static_cast<uint64_t>(now_.number);
    const bool is_here = std::ranges::find(kept_, index, &Kept::first) != kept_.end();
    return is_here ? nullptr : memo_.find(index);
  }

  bool name(const std::string& wanted) {
    if (is_text()) return now_.text == wanted && (step(), pass_number());
    const Value* known = fetched();
    if (known == nullptr || !known->is(Value::Kind::string) || known->as_string() != wanted) return false;
    step();
    return true;
  }

  bool value(Value& out) {
    if (now_.op == Op::none || is_integer()) {
      out = now_.op == Op::none ? Value() : Value(now_.number);
      step();
      return true;
    }
    if (now_.op == Op::long1 && now_.text.size() <= sizeof(int64_t)) {
      out = decode_long(now_.text);
      step();
      return true;
    }
    if (is_text()) {
      if (now_.text.size() > longest_text || !is_utf8(now_.text)) return false;
      out = Value(now_.text);
      step();
      return pass_number();
    }
    const Value* known = fetched();
    if (known == nullptr) return false;
    step();
    if (is_size_class(*known)) return size(out);
    const bool is_short = known->is(Value::Kind::string) && known->as_string().size() <= longest_text;
    if (!is_short && !is_size(*known)) return false;
    out = *known;
    return true;
  }

  [[nodiscard]] bool is_integer() const {
    return now_.op == Op::binint || now_.op == Op::binint1 || now_.op == Op::binint2;
  }

  /// torch.Size called with a tuple in a tuple.
  bool size(Value& out) {
    dims_.clear();
    if (!pass(Op::empty_tuple)) {
      const bool is_marked = pass(Op::mark);
      for (; is_integer() && dims_.size() < most_dims; step()) dims_.push_back(now_.number);
      const bool is_short = !dims_.empty() && dims_.size() <= 3;
      const auto of_count = static_cast<Op>(static_cast<size_t>(Op::tuple1) + dims_.size() - 1);
      if (!(is_marked ? pass(Op::tuple) : is_short && pass(of_count)) || !pass_number()) return false;
    }
    if (!pass(Op::tuple1) || !pass_number() || !pass(Op::reduce)) return false;
    const auto index = number();
    const bool is_kept = index && memo_.keeps(*index);
    if (is_kept && !memo_.may_put(*index)) return false;
    if (is_kept) {
      out = arena_.sequence(Sequence::Kind::torch_size, {dims_.begin(), dims_.end()});
      kept_.emplace_back(*index, out);
    } else {
      if (!is_size(out) || !out.is_unshared())
        out = std::make_shared<Sequence>(Sequence{Sequence::Kind::torch_size, {}, {}, {}});
      out.as_sequence().items.assign(dims_.begin(), dims_.end());
    }
    if (index) pass_number(*index);
    return true;
  }

  using Kept = std::pair<uint64_t, Value>;

  InstructionReader reader_;
  const Memo& memo_;
  Arena& arena_;
  Instruction now_;
  uint64_t next_;           // number of MEMOIZE
  std::vector<Kept> kept_;  // values that are fetched later, by their numbers
  std::vector<int64_t> dims_;
};

}  // namespace

void RepeatedStates::note(const std::string& type, const Value& state) {
  const bool is_dict = state.is(Value::Kind::dict) && state.as_dict().size() <= most_names;
  if (!is_dict || type.size() > longest_text || (forms_.size() >= most_forms && !forms_.contains(type)))
    return;
  Form form{Value::dict(), {}, {}};
  for (const auto& [key, value] : state.as_dict().entries()) {
    if (!key.is(Value::Kind::string) || key.as_string().size() > longest_text) return;
    form.names.push_back(key.as_string());
    form.state.as_dict().set(key, Value());
  }
  for (const std::string& name : form.names) {
    Value key(name);
    Value none;
    form.values.push_back(form.state.as_dict().append_or_find(key, none));
  }
  forms_[type] = std::move(form);
}

const Value* RepeatedStates::next(const std::string& type, InstructionReader& reader) {
  const auto known = forms_.find(type);
  if (known == forms_.end()) return nullptr;
  Probe probe(reader, memo_, arena_);
  if (!probe.state(known->second.names, known->second.values)) return nullptr;
  probe.number_values(memo_);
  reader = probe.rest();
  return &known->second.state;
}

}  // namespace cbk::pickle
