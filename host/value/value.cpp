#include "host/value/value.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include "host/base/hash.hpp"

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

std::string key_id(const Value& key);

/// A tuple's parts have an order, a frozenset's have none.
std::string sequence_id(const Sequence& sequence) {
  const bool is_set = sequence.kind == Sequence::Kind::frozenset;
  std::vector<std::string> parts;
  for (const Value& item : sequence.items) parts.push_back(key_id(item));
  if (is_set) std::ranges::sort(parts);
  std::string id = is_set ? "{" : "(";
  for (const std::string& part : parts) id += std::to_string(part.size()) + ":" + part;
  return id;
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
    case Value::Kind::complex: {
      const std::complex<double> number = key.as_complex();
      if (number.imag() == 0) return key_id(Value(number.real()));
      return fmt::format("c{} {}", number.real(), number.imag());
    }
    case Value::Kind::sequence:
      return sequence_id(key.as_sequence());
    case Value::Kind::object:
      if (key.as_object().state.is_none()) return "o" + key.as_object().type + ' ' + key.as_object().repr;
      return fmt::format("@{}", key.identity());
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

namespace {

/// Compares by content; bounded, because a container may hold itself.
class Comparison {
 public:
  bool equal(const Value& a, const Value& b) {
    if (a.kind() != b.kind()) return false;
    if (a.identity() != nullptr && a.identity() == b.identity()) return true;
    if (++depth_ > max_depth)
      fail(Errc::value, "trees nested deeper than {} levels cannot be compared", max_depth);
    const bool result = equal_content(a, b);
    --depth_;
    return result;
  }

 private:
  static constexpr int max_depth = 1000;
  bool equal_content(const Value& a, const Value& b);

  bool equal_items(const Sequence& a, const Sequence& b) {
    if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
    for (size_t i = 0; i < a.items.size(); ++i) {
      if (!equal(a.items[i], b.items[i])) return false;
    }
    return true;
  }

  bool equal_dicts(const Dict& a, const Dict& b) {
    if (a.kind != b.kind || a.size() != b.size()) return false;
    for (const auto& [key, value] : a.entries()) {
      const Value* other = b.find(key);
      if (other == nullptr || !equal(value, *other)) return false;
    }
    return true;
  }

  int depth_ = 0;
};

bool equal_reals(double a, double b) {
  return a == b ? std::signbit(a) == std::signbit(b) : a != a && b != b;
}

bool Comparison::equal_content(const Value& a, const Value& b) {
  using Kind = Value::Kind;
  switch (a.kind()) {
    case Kind::none:
      return true;
    case Kind::boolean:
      return a.as_bool() == b.as_bool();
    case Kind::integer: {
      const Integer& x = a.as_integer();
      const Integer& y = b.as_integer();
      return x.fits == y.fits && (x.fits ? x.value == y.value : *x.digits == *y.digits);
    }
    case Kind::real:
      return equal_reals(a.as_double(), b.as_double());
    case Kind::complex:
      return a.as_complex() == b.as_complex();
    case Kind::string:
      return a.as_string() == b.as_string();
    case Kind::bytes:
      return a.as_bytes().data == b.as_bytes().data && a.as_bytes().is_mutable == b.as_bytes().is_mutable;
    case Kind::sequence:
      return equal_items(a.as_sequence(), b.as_sequence());
    case Kind::dict:
      return equal_dicts(a.as_dict(), b.as_dict());
    case Kind::tensor:
      return a.as_leaf().role == b.as_leaf().role && a.as_tensor().same_data(b.as_tensor());
    case Kind::object: {
      const Object& x = a.as_object();
      const Object& y = b.as_object();
      return x.type == y.type && x.repr == y.repr && x.pickle == y.pickle && equal(x.state, y.state);
    }
  }
  return false;
}

}  // namespace

bool Value::equals(const Value& other) const {
  return Comparison().equal(*this, other);
}

namespace {

constexpr size_t smallest_indexed = 9;  // entries; fewer are compared one by one

size_t hash_of(std::string_view text) {
  return KeyedHash()(text);
}

size_t hash_of(const Value& key) {
  return key.is(Value::Kind::string) ? hash_of(std::string_view(key.as_string()))
                                     : hash_of(std::string_view(key_id(key)));
}

bool same_key(const Value& a, const Value& b) {
  const bool is_text = a.is(Value::Kind::string);
  if (is_text != b.is(Value::Kind::string)) return false;
  return is_text ? a.as_string() == b.as_string() : key_id(a) == key_id(b);
}

bool is_text_key(const Value& key, std::string_view text) {
  return key.is(Value::Kind::string) && key.as_string() == text;
}

}  // namespace

template <typename Matches>
size_t Dict::position_of(size_t hash, Matches&& matches) const {
  if (slots_.empty()) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (matches(entries_[i].first)) return i;
    }
    return size();
  }
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash & mask; slots_[slot] != 0; slot = (slot + 1) & mask) {
    const size_t position = slots_[slot] - 1;
    if (matches(entries_[position].first)) return position;
  }
  return size();
}

size_t Dict::position_of(const Value& key) const {
  const size_t hash = slots_.empty() ? 0 : hash_of(key);
  return position_of(hash, [&](const Value& other) { return same_key(key, other); });
}

void Dict::index(size_t position) {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_of(entries_[position].first) & mask;
  while (slots_[slot] != 0) slot = (slot + 1) & mask;
  slots_[slot] = static_cast<uint32_t>(position + 1);
}

void Dict::rebuild_index(size_t capacity) {
  if (capacity >= ~uint32_t{0}) fail(Errc::value, "a dict of {} entries", capacity);
  slots_.clear();
  if (capacity < smallest_indexed) return;
  slots_.assign(std::bit_ceil(2 * capacity), 0);
  for (size_t i = 0; i < entries_.size(); ++i) index(i);
}

const Value* Dict::find(const Value& key) const {
  const size_t position = position_of(key);
  return position == size() ? nullptr : &entries_[position].second;
}

const Value* Dict::find(std::string_view key) const {
  const size_t hash = slots_.empty() ? 0 : hash_of(key);
  const size_t position = position_of(hash, [&](const Value& other) { return is_text_key(other, key); });
  return position == size() ? nullptr : &entries_[position].second;
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
  const size_t position = position_of(key);
  if (position < size()) {
    entries_[position].second = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() >= smallest_indexed && 2 * entries_.size() > slots_.size()) {
    rebuild_index(2 * entries_.size());
  } else if (!slots_.empty()) {
    index(position);
  }
}

bool Dict::erase(const Value& key) {
  const size_t position = position_of(key);
  if (position == size()) return false;
  entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(position));
  rebuild_index(size());
  return true;
}

void Dict::reserve(size_t count) {
  entries_.reserve(count);
  rebuild_index(std::max(count, size()));
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
    case Value::Kind::bytes:
      return "b" + quote(key.as_bytes().data);
    case Value::Kind::complex:
      return fmt::format("({}{:+}j)", key.as_complex().real(), key.as_complex().imag());
    case Value::Kind::object:
      return key.as_object().repr.empty() ? key.kind_name() : key.as_object().repr;
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
