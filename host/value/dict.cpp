// Dict: entries in order, found by open addressing. Erasing leaves a hole in both; if half of the entries
// are holes, they are closed, so that erasing n entries costs n steps.
#include <algorithm>
#include <bit>
#include <cmath>

#include "host/base/hash.hpp"
#include "host/value/value.hpp"

namespace cbk {
namespace {

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

constexpr size_t smallest_indexed = 9;  // entries; fewer are compared one by one
constexpr size_t nowhere = SIZE_MAX;
constexpr uint32_t erased_slot = UINT32_MAX;  // free, in the middle of a chain

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
  const auto found = [&](size_t position) { return !is_hole(position) && matches(entries_[position].first); };
  if (slots_.empty()) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (found(i)) return i;
    }
    return nowhere;
  }
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash & mask; slots_[slot] != 0; slot = (slot + 1) & mask) {
    if (slots_[slot] != erased_slot && found(slots_[slot] - 1)) return slots_[slot] - 1;
  }
  return nowhere;
}

size_t Dict::position_of(const Value& key) const {
  const size_t hash = slots_.empty() ? 0 : hash_of(key);
  return position_of(hash, [&](const Value& other) { return same_key(key, other); });
}

void Dict::index(size_t position) {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_of(entries_[position].first) & mask;
  while (slots_[slot] != 0 && slots_[slot] != erased_slot) slot = (slot + 1) & mask;
  slots_[slot] = static_cast<uint32_t>(position + 1);
}

void Dict::rebuild_index(size_t capacity) {
  if (capacity >= ~uint32_t{0}) fail(Errc::value, "a dict of {} entries", capacity);
  slots_.clear();
  if (capacity < smallest_indexed) return;
  slots_.assign(std::bit_ceil(2 * capacity), 0);
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!is_hole(i)) index(i);
  }
}

void Dict::close_holes() {
  if (hole_count_ == 0 || pins_.count > 0) return;
  size_t kept = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (is_hole(i)) continue;
    if (kept != i) entries_[kept] = std::move(entries_[i]);
    ++kept;
  }
  entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(kept), entries_.end());
  holes_.clear();
  hole_count_ = 0;
}

const Value* Dict::find(const Value& key) const {
  const size_t position = position_of(key);
  return position == nowhere ? nullptr : &entries_[position].second;
}

const Value* Dict::find(std::string_view key) const {
  const size_t hash = slots_.empty() ? 0 : hash_of(key);
  const size_t position = position_of(hash, [&](const Value& other) { return is_text_key(other, key); });
  return position == nowhere ? nullptr : &entries_[position].second;
}

const Value& Dict::at(std::string_view key) const {
  if (const Value* value = find(key)) return *value;
  std::vector<std::string> names;
  for (const Entry& entry : entries()) {
    if (names.size() < 10000) names.push_back(key_text(entry.first));
  }
  const auto close = nearest(key, names);
  fail(Errc::key, "there is no key {}{}", quote(key), close.empty() ? "" : "; near it: " + listed(close));
}

void Dict::set(Value key, Value value) {
  if (Value* old = append_or_find(key, value)) *old = std::move(value);
}

Value* Dict::append_or_find(Value& key, Value& value) {
  const size_t position = position_of(key);
  if (position != nowhere) return &entries_[position].second;
  const bool is_full = entries_.size() + 1 >= smallest_indexed && 2 * (entries_.size() + 1) > slots_.size();
  if (is_full) close_holes();
  entries_.emplace_back(std::move(key), std::move(value));
  if (hole_count_ > 0) holes_.push_back(false);
  if (is_full) {
    rebuild_index(2 * entries_.size());
  } else if (!slots_.empty()) {
    index(entries_.size() - 1);
  }
  return nullptr;
}

bool Dict::erase(const Value& key) {
  const size_t position = position_of(key);
  if (position == nowhere) return false;
  if (!slots_.empty()) {
    const size_t mask = slots_.size() - 1;
    size_t slot = hash_of(key) & mask;
    while (slots_[slot] != position + 1) slot = (slot + 1) & mask;
    slots_[slot] = erased_slot;
  }
  const Entry erased = std::exchange(entries_[position], {});  // goes when the dict is in order again
  if (holes_.empty()) holes_.resize(entries_.size());
  holes_[position] = true;
  ++hole_count_;
  if (2 * hole_count_ >= entries_.size() && pins_.count == 0) {
    close_holes();
    rebuild_index(size());
  }
  return true;
}

void Dict::reserve(size_t count) {
  close_holes();
  entries_.reserve(count);
  rebuild_index(std::max(count, size()));
}

}  // namespace cbk
