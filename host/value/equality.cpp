// Value::equals: trees compared by content.
#include <cmath>
#include <set>

#include "host/value/value.hpp"

namespace cbk {
namespace {

/// Compares by content; bounded, because a container may contain itself.
class Comparison {
 public:
  bool equal(const Value& a, const Value& b) {
    if (a.kind() != b.kind()) return false;
    if (a.identity() != nullptr && a.identity() == b.identity()) return true;
    if (++depth_ > max_depth)
      fail(Errc::value, "trees nested deeper than {} levels cannot be compared", max_depth);
    const bool is_shared = may_nest(a) && !(a.is_unshared() && b.is_unshared());
    const bool is_known = is_shared && equal_.contains({a.identity(), b.identity()});
    const bool result = is_known || equal_content(a, b);
    if (is_shared && result) equal_.emplace(a.identity(), b.identity());
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

  static bool may_nest(const Value& value) {
    return value.is(Value::Kind::sequence) || value.is(Value::Kind::dict) || value.is(Value::Kind::object);
  }

  std::set<std::pair<const void*, const void*>> equal_;  // containers that a walk may come to again
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
      return x.type == y.type && x.repr == y.repr && equal(x.state, y.state);
    }
  }
  return false;
}

}  // namespace

bool Value::equals(const Value& other) const {
  return Comparison().equal(*this, other);
}

}  // namespace cbk
