// The loops of element_op.hpp, compiled once for each instruction set (Highway's foreach_target).
#include "host/compute/element_op.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/compute/element_loops.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// after highway.h
#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace cbk::compute::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class V>
using TOf = hn::TFromV<V>;

// --- functions of a vector. NaN in gives NaN out; Highway's own functions do not promise that.

/// True if either is NaN; Highway's Ne is not, with AVX-512.
template <class V>
auto not_equal_of(V x, V y) {
  return hn::Not(hn::Eq(x, y));
}

template <class D, class V>
V exp_of(D d, V x) {
  using T = TOf<V>;
  const T most = sizeof(T) == 4 ? T(88.7228) : T(709.782);
  const V y = hn::Exp(d, hn::Min(x, hn::Set(d, most)));
  const V big =
      hn::IfThenElse(hn::Gt(x, hn::Set(d, most)), hn::Set(d, std::numeric_limits<T>::infinity()), y);
  return hn::IfThenElse(hn::Eq(x, x), big, x);
}

template <class D, class V>
V log_of(D d, V x) {
  using T = TOf<V>;
  const V zero = hn::Zero(d);
  const V infinity = hn::Set(d, std::numeric_limits<T>::infinity());
  V y = hn::Log(d, x);
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity), y);
  y = hn::IfThenElse(hn::Eq(x, infinity), x, y);
  return hn::IfThenElse(hn::Ge(x, zero), y, hn::Set(d, std::numeric_limits<T>::quiet_NaN()));
}

template <class D, class V>
V sigmoid_of(D d, V x) {
  const V one = hn::Set(d, 1);
  return hn::Div(one, hn::Add(one, exp_of(d, hn::Neg(x))));
}

// 1 - 2 / (exp(2x) + 1), and for small x the odd polynomial, for which that difference would lose digits.
template <class D, class V>
V tanh_of(D d, V x) {
  const V y = hn::Tanh(d, hn::Min(hn::Max(x, hn::Set(d, -30)), hn::Set(d, 30)));
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}

/// Polynomials fitted to erf by Chebyshev nodes: below 1 x·P(x²), error 1.2e-9; above it
/// 1 - exp(-x²)·Q(1 / (1 + x/2)), error 1.1e-10.
template <class D, class V>
V small_erf(D d, V x) {
  const V u = hn::Mul(x, x);
  V y = hn::Set(d, 7.882497127085057e-05F);
  for (const float c : {-0.0008018854997630981F, 0.005189311943211961F, -0.0268543287963383F,
                        0.11283597463494816F, -0.37612626903581164F, 1.1283791658815032F}) {
    y = hn::MulAdd(y, u, hn::Set(d, c));
  }
  return hn::Mul(x, y);
}

template <class D, class V>
V large_erf(D d, V x) {
  const V one = hn::Set(d, 1);
  const V t = hn::Div(one, hn::MulAdd(x, hn::Set(d, 0.5F), one));
  V y = hn::Set(d, -0.2296115312916125F);
  for (const float c : {0.6331780946464818F, -0.060351192154138734F, 0.3943983665439054F,
                        0.26040134792431757F, 0.0017410426096082232F}) {
    y = hn::MulAdd(y, t, hn::Set(d, c));
  }
  return hn::NegMulAdd(exp_of(d, hn::Neg(hn::Mul(x, x))), y, one);
}

template <class D, class V, hwy::EnableIf<sizeof(TOf<V>) == 4>* = nullptr>
V erf_of(D d, V x) {
  const V size = hn::Abs(x);
  const V large = hn::CopySign(large_erf(d, hn::Min(size, hn::Set(d, 4))), x);
  const V y = hn::IfThenElse(hn::Lt(size, hn::Set(d, 1)), small_erf(d, x), large);
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}

/// Each lane by the C library.
template <class D, class V, class F>
V lanes_of(D d, V x, F function) {
  HWY_ALIGN TOf<V> lanes[hn::MaxLanes(d)];
  hn::Store(x, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = function(lanes[i]);
  return hn::Load(d, lanes);
}

template <class D, class V, hwy::EnableIf<sizeof(TOf<V>) == 8>* = nullptr>
V erf_of(D d, V x) {
  return lanes_of(d, x, [](double value) { return std::erf(value); });
}

/// Φ(x), the normal distribution: gelu(x) = x·Φ(x) (Hendrycks and Gimpel 2016).
template <class D, class V>
V normal_of(D d, V x) {
  const V half = hn::Set(d, 0.5);
  return hn::MulAdd(half, erf_of(d, hn::Mul(x, hn::Set(d, TOf<V>(0.70710678118654752440)))), half);
}

/// tanh(√(2/π)·(x + 0.044715·x³)), of the tanh form of gelu.
template <class D, class V>
V gelu_tanh_of(D d, V x) {
  using T = TOf<V>;
  const V cube = hn::Mul(hn::Mul(x, x), x);
  return tanh_of(
      d, hn::Mul(hn::Set(d, T(0.79788456080286535588)), hn::MulAdd(cube, hn::Set(d, T(0.044715)), x)));
}

template <class D, class V>
V gelu_tanh_slope_of(D d, V x) {
  using T = TOf<V>;
  const V one = hn::Set(d, 1);
  const V half = hn::Set(d, T(0.5));
  const V t = gelu_tanh_of(d, x);
  const V inner = hn::Mul(hn::Set(d, T(0.79788456080286535588)),
                          hn::MulAdd(hn::Mul(x, x), hn::Set(d, T(3 * 0.044715)), one));
  const V rest = hn::Mul(hn::Mul(half, x), hn::Mul(hn::NegMulAdd(t, t, one), inner));
  return hn::MulAdd(half, hn::Add(one, t), rest);
}

template <class D, class M>
auto truth(D d, M mask) {
  return hn::IfThenElseZero(mask, hn::Set(d, 1));
}

// --- the operations, as functors of (tag, operands)

template <ElementOp op>
struct Op;

#define CBK_UNARY(op, expression)             \
  template <>                                 \
  struct Op<ElementOp::op> {                  \
    template <class D, class V>               \
    HWY_INLINE V operator()(D d, V x) const { \
      (void)d;                                \
      return expression;                      \
    }                                         \
  }
CBK_UNARY(copy, x);
CBK_UNARY(negate, hn::Neg(x));
CBK_UNARY(absolute, hn::Abs(x));
CBK_UNARY(exp, exp_of(d, x));
CBK_UNARY(log, log_of(d, x));
CBK_UNARY(sqrt, hn::Sqrt(x));
CBK_UNARY(rsqrt, hn::Div(hn::Set(d, 1), hn::Sqrt(x)));
CBK_UNARY(square, hn::Mul(x, x));
CBK_UNARY(sign,
          hn::IfThenElse(hn::Eq(x, x),
                         hn::Sub(truth(d, hn::Gt(x, hn::Zero(d))), truth(d, hn::Lt(x, hn::Zero(d)))), x));
CBK_UNARY(floor, hn::Floor(x));
CBK_UNARY(ceil, hn::Ceil(x));
CBK_UNARY(cos, lanes_of(d, x, [](TOf<V> value) { return std::cos(value); }));
CBK_UNARY(sin, lanes_of(d, x, [](TOf<V> value) { return std::sin(value); }));
CBK_UNARY(tanh, tanh_of(d, x));
CBK_UNARY(sigmoid, sigmoid_of(d, x));
CBK_UNARY(relu, hn::IfThenZeroElse(hn::Le(x, hn::Zero(d)), x));
CBK_UNARY(erf, erf_of(d, x));
CBK_UNARY(gelu, hn::Mul(x, normal_of(d, x)));
// Φ(x) + x·φ(x)
CBK_UNARY(gelu_slope,
          hn::MulAdd(hn::Mul(x, hn::Set(d, TOf<V>(0.39894228040143267794))),
                     exp_of(d, hn::Mul(hn::Set(d, TOf<V>(-0.5)), hn::Mul(x, x))), normal_of(d, x)));
CBK_UNARY(gelu_tanh,
          hn::Mul(hn::Mul(hn::Set(d, TOf<V>(0.5)), x), hn::Add(hn::Set(d, 1), gelu_tanh_of(d, x))));
CBK_UNARY(gelu_tanh_slope, gelu_tanh_slope_of(d, x));
CBK_UNARY(silu, hn::Mul(x, sigmoid_of(d, x)));
// s + x·s·(1 - s)
template <>
struct Op<ElementOp::silu_slope> {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    const V s = sigmoid_of(d, x);
    return hn::MulAdd(hn::Mul(x, s), hn::Sub(hn::Set(d, 1), s), s);
  }
};
CBK_UNARY(reciprocal, hn::Div(hn::Set(d, 1), x));
CBK_UNARY(is_finite, truth(d, hn::Le(hn::Abs(x), hn::Set(d, std::numeric_limits<TOf<V>>::max()))));
CBK_UNARY(logical_not, truth(d, hn::Eq(x, hn::Zero(d))));
#undef CBK_UNARY

#define CBK_BINARY(op, expression)                 \
  template <>                                      \
  struct Op<ElementOp::op> {                       \
    template <class D, class V>                    \
    HWY_INLINE V operator()(D d, V x, V y) const { \
      (void)d;                                     \
      return expression;                           \
    }                                              \
  }
CBK_BINARY(add, hn::Add(x, y));
CBK_BINARY(subtract, hn::Sub(x, y));
CBK_BINARY(multiply, hn::Mul(x, y));
CBK_BINARY(divide, hn::Div(x, y));
// As in PyTorch, NaN on either side is NaN.
CBK_BINARY(maximum, hn::IfThenElse(hn::Eq(x, x), hn::IfThenElse(hn::Eq(y, y), hn::Max(x, y), y), x));
CBK_BINARY(minimum, hn::IfThenElse(hn::Eq(x, x), hn::IfThenElse(hn::Eq(y, y), hn::Min(x, y), y), x));
CBK_BINARY(equal, truth(d, hn::Eq(x, y)));
CBK_BINARY(not_equal, truth(d, not_equal_of(x, y)));
CBK_BINARY(less, truth(d, hn::Lt(x, y)));
CBK_BINARY(less_equal, truth(d, hn::Le(x, y)));
CBK_BINARY(greater, truth(d, hn::Gt(x, y)));
CBK_BINARY(greater_equal, truth(d, hn::Ge(x, y)));
CBK_BINARY(logical_and, truth(d, hn::And(not_equal_of(x, hn::Zero(d)), not_equal_of(y, hn::Zero(d)))));
CBK_BINARY(logical_or, truth(d, hn::Or(not_equal_of(x, hn::Zero(d)), not_equal_of(y, hn::Zero(d)))));
#undef CBK_BINARY

template <>
struct Op<ElementOp::power> {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x, V y) const {
    HWY_ALIGN TOf<V> bases[hn::MaxLanes(d)];
    HWY_ALIGN TOf<V> exponents[hn::MaxLanes(d)];
    hn::Store(x, d, bases);
    hn::Store(y, d, exponents);
    for (size_t i = 0; i < hn::Lanes(d); ++i) bases[i] = std::pow(bases[i], exponents[i]);
    return hn::Load(d, bases);
  }
};

template <>
struct Op<ElementOp::where> {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V condition, V x, V y) const {
    return hn::IfThenElse(not_equal_of(condition, hn::Zero(d)), x, y);
  }
};

/// Two operations, the result of the first as the first or last operand of the second.
template <class First, class Second, bool is_last>
struct PairOp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x, V y, V z) const {
    const V between = first(d, x, y);
    return is_last ? Second()(d, z, between) : Second()(d, between, z);
  }

 private:
  template <class D, class V>
  HWY_INLINE V first(D d, V x, V y) const {
    if constexpr (std::is_invocable_v<First, D, V, V>) {
      return First()(d, x, y);
    } else {
      return First()(d, x);
    }
  }
};

// --- the loops

template <typename T, bool is_scalar, class D>
HWY_INLINE auto operand(D d, const T* values, size_t i) {
  if constexpr (is_scalar) {
    return hn::Set(d, values[0]);
  } else {
    return hn::LoadU(d, values + i);
  }
}

/// The rest of an operand, with zeros up to a whole vector.
template <typename T, size_t size>
HWY_INLINE const T* padded(const T* values, size_t begin, size_t count, bool is_scalar, T (&lanes)[size]) {
  if (values == nullptr || is_scalar) return values;
  std::memset(lanes, 0, sizeof lanes);
  std::memcpy(lanes, values + begin, (count - begin) * sizeof(T));
  return lanes;
}

/// Calls step(d, x, y, z, to, i) for whole vectors from element i on. The last elements go through a vector
/// of their own.
template <typename T, unsigned scalars, class Step>
HWY_INLINE void walk(const void* a, const void* b, const void* c, void* out, size_t count, Step step) {
  const hn::ScalableTag<T> d;
  const auto *x = static_cast<const T*>(a), *y = static_cast<const T*>(b), *z = static_cast<const T*>(c);
  auto* to = static_cast<T*>(out);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) step(d, x, y, z, to, i);
  if (i == count) return;
  constexpr size_t lanes = hn::MaxLanes(d);
  HWY_ALIGN T xs[lanes];
  HWY_ALIGN T ys[lanes];
  HWY_ALIGN T zs[lanes];
  HWY_ALIGN T result[lanes];
  step(d, padded(x, i, count, (scalars & 1U) != 0, xs), padded(y, i, count, (scalars & 2U) != 0, ys),
       padded(z, i, count, (scalars & 4U) != 0, zs), result, 0);
  std::memcpy(to + i, result, (count - i) * sizeof(T));
}

template <typename T, class F, unsigned scalars>
void unary_loop(const void* a, const void* /*b*/, const void* /*c*/, void* out, size_t count) {
  walk<T, scalars>(a, nullptr, nullptr, out, count,
                   [](auto d, const T* x, const T*, const T*, T* to, size_t i) {
                     hn::StoreU(F()(d, operand<T, (scalars & 1U) != 0>(d, x, i)), d, to + i);
                   });
}

template <typename T, class F, unsigned scalars>
void binary_loop(const void* a, const void* b, const void* /*c*/, void* out, size_t count) {
  walk<T, scalars>(a, b, nullptr, out, count, [](auto d, const T* x, const T* y, const T*, T* to, size_t i) {
    hn::StoreU(F()(d, operand<T, (scalars & 1U) != 0>(d, x, i), operand<T, (scalars & 2U) != 0>(d, y, i)), d,
               to + i);
  });
}

template <typename T, class F, unsigned scalars>
void ternary_loop(const void* a, const void* b, const void* c, void* out, size_t count) {
  walk<T, scalars>(a, b, c, out, count, [](auto d, const T* x, const T* y, const T* z, T* to, size_t i) {
    hn::StoreU(F()(d, operand<T, (scalars & 1U) != 0>(d, x, i), operand<T, (scalars & 2U) != 0>(d, y, i),
                   operand<T, (scalars & 4U) != 0>(d, z, i)),
               d, to + i);
  });
}

template <typename T, class F>
ElementLoop unary(unsigned scalars) {
  return (scalars & 1U) != 0 ? unary_loop<T, F, 1> : unary_loop<T, F, 0>;
}

template <typename T, class F>
ElementLoop binary(unsigned scalars) {
  constexpr ElementLoop loops[] = {binary_loop<T, F, 0>, binary_loop<T, F, 1>, binary_loop<T, F, 2>,
                                   binary_loop<T, F, 3>};
  return loops[scalars & 3U];
}

template <typename T, class F>
ElementLoop ternary(unsigned scalars) {
  constexpr ElementLoop loops[] = {ternary_loop<T, F, 0>, ternary_loop<T, F, 1>, ternary_loop<T, F, 2>,
                                   ternary_loop<T, F, 3>, ternary_loop<T, F, 4>, ternary_loop<T, F, 5>,
                                   ternary_loop<T, F, 6>, ternary_loop<T, F, 7>};
  return loops[scalars & 7U];
}

template <typename T, ElementOp op>
ElementLoop loop(unsigned scalars) {
  if constexpr (traits_of(op).operands == 1) {
    return unary<T, Op<op>>(scalars);
  } else if constexpr (traits_of(op).operands == 2) {
    return binary<T, Op<op>>(scalars);
  } else {
    return ternary<T, Op<op>>(scalars);
  }
}

template <typename T>
ElementLoop loop_of(ElementOp op, unsigned scalars) {
  switch (op) {
#define CBK_ELEMENT_OP(op, ...) \
  case ElementOp::op:           \
    return loop<T, ElementOp::op>(scalars);
#include "host/compute/element_ops.def"
#undef CBK_ELEMENT_OP
  }
  return nullptr;
}

template <ElementOp first, ElementOp second, bool is_last = false>
ElementLoop pair(unsigned scalars) {
  return ternary<float, PairOp<Op<first>, Op<second>, is_last>>(scalars);
}

/// Pairs of operations in the formulas of optimizers.
ElementLoop pair_loop(ElementOp first, ElementOp second, bool is_last, unsigned s) {
  if (second == ElementOp::add || second == ElementOp::multiply) is_last = false;
  const auto is = [&](ElementOp a, ElementOp b, bool last) {
    return first == a && second == b && is_last == last;
  };
  if (is(ElementOp::multiply, ElementOp::add, false)) return pair<ElementOp::multiply, ElementOp::add>(s);
  if (is(ElementOp::multiply, ElementOp::multiply, false))
    return pair<ElementOp::multiply, ElementOp::multiply>(s);
  if (is(ElementOp::multiply, ElementOp::subtract, false))
    return pair<ElementOp::multiply, ElementOp::subtract>(s);
  if (is(ElementOp::multiply, ElementOp::subtract, true))
    return pair<ElementOp::multiply, ElementOp::subtract, true>(s);
  if (is(ElementOp::add, ElementOp::multiply, false)) return pair<ElementOp::add, ElementOp::multiply>(s);
  if (is(ElementOp::add, ElementOp::divide, true)) return pair<ElementOp::add, ElementOp::divide, true>(s);
  if (is(ElementOp::divide, ElementOp::multiply, false))
    return pair<ElementOp::divide, ElementOp::multiply>(s);
  if (is(ElementOp::sqrt, ElementOp::add, false)) return pair<ElementOp::sqrt, ElementOp::add>(s);
  return nullptr;
}

ElementLoop float_loop(ElementOp op, unsigned scalars) {
  return loop_of<float>(op, scalars);
}
ElementLoop double_loop(ElementOp op, unsigned scalars) {
  return loop_of<double>(op, scalars);
}

}  // namespace cbk::compute::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cbk::compute {
namespace {

HWY_EXPORT(float_loop);
HWY_EXPORT(double_loop);
HWY_EXPORT(pair_loop);

/// Integer powers wrap around; negative powers are integers only for 1 and -1.
int64_t whole_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base != 1 && base != -1) return 0;
    return base == 1 || exponent % 2 == 0 ? 1 : -1;
  }
  uint64_t out = 1;
  for (auto factor = static_cast<uint64_t>(base); exponent > 0; exponent /= 2, factor *= factor) {
    if (exponent % 2 == 1) out *= factor;
  }
  return static_cast<int64_t>(out);
}

// Integers are rare and small, so one plain loop is enough.
int64_t whole(ElementOp op, int64_t a, int64_t b, int64_t c) {
  // Sums and products wrap around, as in PyTorch.
  const auto x = static_cast<uint64_t>(a);
  const auto y = static_cast<uint64_t>(b);
  switch (op) {
    case ElementOp::negate:
      return static_cast<int64_t>(0 - x);
    case ElementOp::absolute:
      return a < 0 ? static_cast<int64_t>(0 - x) : a;
    case ElementOp::square:
      return static_cast<int64_t>(x * x);
    case ElementOp::sign:
      return (a > 0 ? 1 : 0) - (a < 0 ? 1 : 0);
    case ElementOp::relu:
      return a > 0 ? a : 0;
    case ElementOp::is_finite:
      return 1;
    case ElementOp::logical_not:
      return a == 0 ? 1 : 0;
    case ElementOp::add:
      return static_cast<int64_t>(x + y);
    case ElementOp::subtract:
      return static_cast<int64_t>(x - y);
    case ElementOp::multiply:
      return static_cast<int64_t>(x * y);
    case ElementOp::power:
      return whole_power(a, b);
    case ElementOp::maximum:
      return a > b ? a : b;
    case ElementOp::minimum:
      return a < b ? a : b;
    case ElementOp::equal:
      return a == b ? 1 : 0;
    case ElementOp::not_equal:
      return a != b ? 1 : 0;
    case ElementOp::less:
      return a < b ? 1 : 0;
    case ElementOp::less_equal:
      return a <= b ? 1 : 0;
    case ElementOp::greater:
      return a > b ? 1 : 0;
    case ElementOp::greater_equal:
      return a >= b ? 1 : 0;
    case ElementOp::logical_and:
      return a != 0 && b != 0 ? 1 : 0;
    case ElementOp::logical_or:
      return a != 0 || b != 0 ? 1 : 0;
    case ElementOp::where:
      return a != 0 ? b : c;
    default:
      return a;  // copy, floor, ceil
  }
}

template <ElementOp op, unsigned scalars>
void whole_loop(const void* a, const void* b, const void* c, void* out, size_t count) {
  const auto at = [](const void* values, size_t i, unsigned bit) {
    return values == nullptr ? 0 : static_cast<const int64_t*>(values)[(scalars & bit) != 0 ? 0 : i];
  };
  for (size_t i = 0; i < count; ++i) {
    static_cast<int64_t*>(out)[i] = whole(op, at(a, i, 1), at(b, i, 2), at(c, i, 4));
  }
}

template <ElementOp op>
ElementLoop whole_of(unsigned scalars) {
  constexpr ElementLoop loops[] = {whole_loop<op, 0>, whole_loop<op, 1>, whole_loop<op, 2>,
                                   whole_loop<op, 3>, whole_loop<op, 4>, whole_loop<op, 5>,
                                   whole_loop<op, 6>, whole_loop<op, 7>};
  return loops[scalars & 7U];
}

}  // namespace

ElementLoop find_pair(ElementOp first, ElementOp second, bool is_last, unsigned scalars) {
  return HWY_DYNAMIC_DISPATCH(pair_loop)(first, second, is_last, scalars);
}

template <>
ElementLoop find_loop<float>(ElementOp op, unsigned scalars) {
  return HWY_DYNAMIC_DISPATCH(float_loop)(op, scalars);
}

template <>
ElementLoop find_loop<double>(ElementOp op, unsigned scalars) {
  return HWY_DYNAMIC_DISPATCH(double_loop)(op, scalars);
}

template <>
ElementLoop find_loop<int64_t>(ElementOp op, unsigned scalars) {
  if (traits_of(op).makes_floats()) return nullptr;
  switch (op) {
#define CBK_ELEMENT_OP(op, ...) \
  case ElementOp::op:           \
    return whole_of<ElementOp::op>(scalars);
#include "host/compute/element_ops.def"
#undef CBK_ELEMENT_OP
  }
  return nullptr;
}

}  // namespace cbk::compute
#endif
