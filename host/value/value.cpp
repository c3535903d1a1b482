#include "host/value/value.hpp"

#include <charconv>
#include <cmath>

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

/// A text that two keys share exactly when Python calls them equal (1, 1.0 and True are one key there).
std::string key_id(const Value& key) {
  switch (key.kind()) {
    case Value::Kind::none:
      return "n";
    case Value::Kind::boolean:
      return key.as_bool() ? "i1" : "i0";
    case Value::Kind::integer: {
      const Integer& integer = key.as_integer();
      return integer.fits ? "i" + std::to_string(integer.value) : "i" + *integer.digits;
    }
    case Value::Kind::real: {
      const double real = key.as_double();
      if (real == std::floor(real) && std::abs(real) < 9e15)
        return "i" + std::to_string(static_cast<int64_t>(real));
      return fmt::format("f{}", real);
    }
    case Value::Kind::string:
      return "s" + key.as_string();
    case Value::Kind::bytes:
      return "b" + key.as_bytes().data;
    case Value::Kind::sequence: {
      std::string id = "(";
      for (const Value& item : key.as_sequence().items) {
        const std::string part = key_id(item);
        id += std::to_string(part.size()) + ":" + part;
      }
      return id;
    }
    default:
      return fmt::format("@{}", key.identity());
  }
}

}  // namespace

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

bool Value::same(const Value& other) const {
  if (kind() != other.kind()) return false;
  return identity() != nullptr ? identity() == other.identity() : equals(other);
}

namespace {

bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equals(b[i])) return false;
  }
  return true;
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.kind != b.kind || a.size() != b.size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.find(key);
    if (other == nullptr || !value.equals(*other)) return false;
  }
  return true;
}

bool equal_reals(double a, double b) {
  return a == b ? std::signbit(a) == std::signbit(b) : a != a && b != b;
}

}  // namespace

bool Value::equals(const Value& other) const {
  if (kind() != other.kind()) return false;
  if (identity() != nullptr && identity() == other.identity()) return true;
  switch (kind()) {
    case Kind::none:
      return true;
    case Kind::boolean:
      return as_bool() == other.as_bool();
    case Kind::integer: {
      const Integer& a = as_integer();
      const Integer& b = other.as_integer();
      return a.fits == b.fits && (a.fits ? a.value == b.value : *a.digits == *b.digits);
    }
    case Kind::real:
      return equal_reals(as_double(), other.as_double());
    case Kind::complex:
      return as_complex() == other.as_complex();
    case Kind::string:
      return as_string() == other.as_string();
    case Kind::bytes:
      return as_bytes().data == other.as_bytes().data && as_bytes().is_mutable == other.as_bytes().is_mutable;
    case Kind::sequence:
      return as_sequence().kind == other.as_sequence().kind &&
             equal_items(as_sequence().items, other.as_sequence().items);
    case Kind::dict:
      return equal_dicts(as_dict(), other.as_dict());
    case Kind::tensor:
      return as_leaf().role == other.as_leaf().role && as_tensor().same_data(other.as_tensor());
    case Kind::object: {
      const Object& a = as_object();
      const Object& b = other.as_object();
      return a.type == b.type && a.repr == b.repr && a.pickle == b.pickle && a.state.equals(b.state);
    }
  }
  return false;
}

const Value* Dict::find(const Value& key) const {
  auto found = index_.find(key_id(key));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

const Value* Dict::find(std::string_view key) const {
  auto found = index_.find("s" + std::string(key));
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

const Value& Dict::at(std::string_view key) const {
  if (const Value* value = find(key)) return *value;
  std::vector<std::string> names;
  for (const Entry& entry : entries_) {
    if (names.size() < 10000) names.push_back(key_text(entry.first));
  }
  const auto close = nearest(key, names);
  fail(Errc::key, "there is no key {}{}", quote(key), close.empty() ? "" : "; near it: " + listed(close));
}

void Dict::set(Value key, Value value) {
  auto [position, is_new] = index_.try_emplace(key_id(key), entries_.size());
  if (is_new) {
    entries_.emplace_back(std::move(key), std::move(value));
  } else {
    entries_[position->second].second = std::move(value);
  }
}

bool Dict::erase(const Value& key) {
  auto found = index_.find(key_id(key));
  if (found == index_.end()) return false;
  const size_t position = found->second;
  index_.erase(found);
  entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(position));
  for (auto& entry : index_) {
    if (entry.second > position) --entry.second;
  }
  return true;
}

void Dict::reserve(size_t count) {
  entries_.reserve(count);
  index_.reserve(count);
}

std::string key_text(const Value& key) {
  switch (key.kind()) {
    case Value::Kind::none:
      return "None";
    case Value::Kind::boolean:
      return key.as_bool() ? "True" : "False";
    case Value::Kind::integer:
      return key.as_integer().fits ? std::to_string(key.as_int()) : *key.as_integer().digits;
    case Value::Kind::real: {
      const double real = key.as_double();
      if (real == std::floor(real) && std::abs(real) < 1e16) return fmt::format("{:.1f}", real);
      return fmt::format("{}", real);
    }
    case Value::Kind::string:
      return key.as_string();
    case Value::Kind::sequence: {
      std::string text = "(";
      const auto& items = key.as_sequence().items;
      for (size_t i = 0; i < items.size(); ++i) text += (i > 0 ? ", " : "") + key_text(items[i]);
      return text + (items.size() == 1 ? ",)" : ")");
    }
    default:
      return key.kind_name();
  }
}

const Value* child(const Value& container, std::string_view part) {
  if (container.is(Value::Kind::dict)) {
    const Dict& dict = container.as_dict();
    if (const Value* value = dict.find(part)) return value;
    for (const auto& [key, value] : dict.entries()) {
      if (!key.is(Value::Kind::string) && key_text(key) == part) return &value;
    }
    return nullptr;
  }
  if (!container.is(Value::Kind::sequence)) return nullptr;
  const auto& items = container.as_sequence().items;
  size_t position = 0;
  auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), position);
  const bool is_index = error == std::errc{} && end == part.data() + part.size();
  return is_index && position < items.size() ? &items[position] : nullptr;
}

const Value* find_path(const Value& root, std::string_view path) {
  if (path.empty()) return &root;
  if (const Value* value = child(root, path)) return value;
  for (size_t dot = path.rfind('.'); dot != std::string_view::npos && dot > 0;
       dot = path.rfind('.', dot - 1)) {
    const Value* value = child(root, path.substr(0, dot));
    if (value == nullptr) continue;
    if (const Value* found = find_path(*value, path.substr(dot + 1))) return found;
  }
  return nullptr;
}

}  // namespace cbk
