#include "host/value/value.hpp"

#include <charconv>

namespace cbk {
namespace {

constexpr std::string_view sequence_name(Sequence::Kind kind) {
  switch (kind) {
    case Sequence::Kind::list:
      return "list";
    case Sequence::Kind::tuple:
      return "tuple";
    case Sequence::Kind::set:
      return "set";
    case Sequence::Kind::frozenset:
      return "frozenset";
    case Sequence::Kind::deque:
      return "deque";
    case Sequence::Kind::torch_size:
      return "torch.Size";
  }
  return "sequence";
}

constexpr std::string_view dict_name(Dict::Kind kind) {
  switch (kind) {
    case Dict::Kind::dict:
      return "dict";
    case Dict::Kind::ordered:
      return "OrderedDict";
    case Dict::Kind::counter:
      return "Counter";
    case Dict::Kind::defaultdict:
      return "defaultdict";
  }
  return "dict";
}

[[noreturn]] void wrong_kind(const Value& value, std::string_view wanted) {
  fail(Errc::value, "expected {}, found {}", wanted, value.kind_name());
}

}  // namespace

void Value::let_go() noexcept {
  constexpr int deepest = 100;
  thread_local int depth = 0;
  thread_local std::vector<Value>* later = nullptr;  // of the outermost call
  if (!is_unshared()) return;                        // nothing is freed
  if (depth == deepest) {
    later->push_back(std::move(*this));
    return;
  }
  std::vector<Value> waiting;
  const bool is_outermost = depth == 0;
  if (is_outermost) later = &waiting;
  ++depth;
  data_ = std::monostate();
  while (is_outermost && !waiting.empty()) {
    const Value next = std::move(waiting.back());
    waiting.pop_back();
  }
  --depth;
  if (is_outermost) later = nullptr;
}

Value Value::list(std::vector<Value> items) {
  return std::make_shared<Sequence>(Sequence{Sequence::Kind::list, std::move(items), {}, {}});
}

Value Value::tuple(std::vector<Value> items) {
  return std::make_shared<Sequence>(Sequence{Sequence::Kind::tuple, std::move(items), {}, {}});
}

Value Value::dict() {
  return std::make_shared<Dict>();
}

Value Value::bytes(std::string data) {
  return std::make_shared<ByteString>(ByteString{std::move(data), false});
}

Value Value::integer(std::string_view decimal) {
  std::string_view digits = decimal.starts_with('+') ? decimal.substr(1) : decimal;
  int64_t number = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error == std::errc{} && end == digits.data() + digits.size()) return number;
  if (error != std::errc::result_out_of_range) fail(Errc::value, "{} is not a whole number", quote(decimal));
  return Integer{0, std::make_shared<const std::string>(digits), false};
}

std::string Value::kind_name() const {
  switch (kind()) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::real:
      return "float";
    case Kind::complex:
      return "complex";
    case Kind::string:
      return "str";
    case Kind::bytes:
      return as_bytes().is_mutable ? "bytearray" : "bytes";
    case Kind::sequence:
      return std::string(sequence_name(as_sequence().kind));
    case Kind::dict:
      return std::string(dict_name(as_dict().kind));
    case Kind::tensor:
      return as_leaf().role == TensorLeaf::Role::ndarray ? "numpy array" : "tensor";
    case Kind::object:
      return as_object().type;
  }
  return "value";
}

bool Value::as_bool() const {
  if (const bool* value = std::get_if<bool>(&data_)) return *value;
  wrong_kind(*this, "a bool");
}

const Integer& Value::as_integer() const {
  if (const Integer* value = std::get_if<Integer>(&data_)) return *value;
  wrong_kind(*this, "an int");
}

int64_t Value::as_int() const {
  const Integer& integer = as_integer();
  if (!integer.fits) fail(Errc::value, "{} does not fit 64 bits", quote(*integer.digits));
  return integer.value;
}

const Real& Value::as_real() const {
  if (const Real* value = std::get_if<Real>(&data_)) return *value;
  wrong_kind(*this, "a float");
}

double Value::as_double() const {
  if (is(Kind::integer)) {
    const Integer& integer = as_integer();
    return integer.fits ? static_cast<double>(integer.value) : std::strtod(integer.digits->c_str(), nullptr);
  }
  return as_real().value;
}

std::complex<double> Value::as_complex() const {
  if (const auto* value = std::get_if<std::complex<double>>(&data_)) return *value;
  wrong_kind(*this, "a complex number");
}

const std::string& Value::as_string() const {
  if (const auto* value = std::get_if<std::string>(&data_)) return *value;
  wrong_kind(*this, "text");
}

const ByteString& Value::as_bytes() const {
  if (const auto* value = std::get_if<std::shared_ptr<ByteString>>(&data_)) return **value;
  wrong_kind(*this, "bytes");
}

Sequence& Value::as_sequence() const {
  if (const auto* value = std::get_if<std::shared_ptr<Sequence>>(&data_)) return **value;
  wrong_kind(*this, "a list");
}

Dict& Value::as_dict() const {
  if (const auto* value = std::get_if<std::shared_ptr<Dict>>(&data_)) return **value;
  wrong_kind(*this, "a dict");
}

const TensorLeaf& Value::as_leaf() const {
  if (const auto* value = std::get_if<std::shared_ptr<const TensorLeaf>>(&data_)) return **value;
  wrong_kind(*this, "a tensor");
}

const Tensor& Value::as_tensor() const {
  return as_leaf().tensor;
}

Object& Value::as_object() const {
  if (const auto* value = std::get_if<std::shared_ptr<Object>>(&data_)) return **value;
  wrong_kind(*this, "an object");
}

const Value* Value::find(std::string_view key) const {
  return is(Kind::dict) ? as_dict().find(key) : nullptr;
}

const void* Value::identity() const {
  return std::visit(
      [](const auto& data) -> const void* {
        if constexpr (requires { data.get(); }) return data.get();
        return nullptr;
      },
      data_);
}

bool Value::is_unshared() const {
  return std::visit(
      [](const auto& data) {
        if constexpr (requires { data.use_count(); }) return data.use_count() == 1;
        return false;
      },
      data_);
}

bool Value::same(const Value& other) const {
  if (kind() != other.kind()) return false;
  return identity() != nullptr ? identity() == other.identity() : equals(other);
}

}  // namespace cbk
