// New variables: constants and random numbers.
#include <cmath>

#include "host/base/error.hpp"
#include "host/base/team.hpp"
#include "host/compute/elementwise.hpp"
#include "host/compute/function_kernel.hpp"
#include "host/compute/operators.hpp"
#include "host/compute/promote.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk::compute {
namespace {

/// Each draw has its own sequence of numbers: the same for any number of threads, new in each replay.
template <typename Draw>
VariablePtr random(DType dtype, Shape shape, Draw draw) {
  VariablePtr out = Variable::empty(dtype, std::move(shape));
  std::pair<std::shared_ptr<uint64_t>, bool> kept;
  if (context().draws) kept = context().draws->next();
  execute({}, {out->operand()},
          [draw, kept](const std::vector<Operand>&, const std::vector<Operand>& writes) {
            const Operand& to = writes[0];
            const uint64_t seed =
                kept.second ? *kept.first : context().seed * 0x9e3779b97f4a7c15ULL + ++context().drawn;
            if (kept.first) *kept.first = seed;
            const Tensor numbers = draw(to.shape, seed);
            std::vector<std::byte> dense(numbers.nbytes());
            numbers.read(0, dense);
            cast_elements(numbers.dtype(), dense.data(), to.dtype, to.bytes(), to.numel());
          });
  return out;
}

/// The largest uniform numbers must not round to 1.
double below_one(DType dtype) {
  if (dtype == DType::float16) return 1 - 0x1p-11;
  return dtype == DType::bfloat16 ? 1 - 0x1p-8 : 1 - 0x1p-25;
}

}  // namespace

VariablePtr full(DType dtype, Shape shape, double value, Device device) {
  check_reach(dtype, value);
  VariablePtr out = Variable::empty(dtype, std::move(shape), device);
  ElementChain chain;
  chain.type = compute_type(dtype);
  chain.domain = out->shape();
  chain.constants = {value};
  chain.outputs = {{out->operand(), {ChainValue::Kind::constant, 0}}};
  execute(std::make_unique<Elementwise>(std::move(chain)));
  return out;
}

VariablePtr arange(DType dtype, double start, double stop, double step) {
  if (step == 0 || !std::isfinite(start) || !std::isfinite(stop) || !std::isfinite(step)) {
    fail(Errc::value, "arange: start, stop and step must be finite and step not 0");
  }
  const double count = std::max(0.0, std::ceil((stop - start) / step));
  if (count > 1e12) fail(Errc::value, "arange: {} elements are too many", count);
  VariablePtr out = Variable::empty(dtype, {static_cast<int64_t>(count)});
  execute({}, {out->operand()},
          [start, step](const std::vector<Operand>&, const std::vector<Operand>& writes) {
            const Operand& to = writes[0];
            for (int64_t i = 0; i < to.numel(); ++i) {
              const double value = start + static_cast<double>(i) * step;
              cast_elements(DType::float64, reinterpret_cast<const std::byte*>(&value), to.dtype,
                            to.bytes() + i * size_of(to.dtype), 1);
            }
          });
  return out;
}

VariablePtr random_uniform(DType dtype, Shape shape) {
  return random(dtype, std::move(shape), [dtype](const Shape& of, uint64_t seed) {
    return Tensor::uniform(DType::float32, of, 0, below_one(dtype), seed);
  });
}

VariablePtr random_normal(DType dtype, Shape shape) {
  return random(dtype, std::move(shape), [](const Shape& of, uint64_t seed) {
    return Tensor::normal(DType::float32, of, 0, 1, seed);
  });
}

VariablePtr random_integers(DType dtype, Shape shape, double low, double high) {
  if (low >= high || low != std::floor(low) || high != std::floor(high)) {
    fail(Errc::value, "randint: expected whole numbers low < high, found {} and {}", low, high);
  }
  // A cast rounds towards 0, which is downwards only for numbers from 0.
  const VariablePtr numbers =
      random(DType::int64, std::move(shape), [range = high - low](const Shape& of, uint64_t seed) {
        return Tensor::uniform(DType::float64, of, 0, range, seed).cast(DType::int64);
      });
  return cast(low == 0 ? numbers : binary(ElementOp::add, numbers, low), dtype);
}

VariablePtr dropout_kept(Shape shape, double p) {
  if (!(p >= 0 && p < 1)) fail(Errc::value, "dropout: p must be in [0, 1), not {}", p);
  // Ranks have other samples, so they drop other elements.
  const VariablePtr numbers = random(DType::float32, std::move(shape), [](const Shape& of, uint64_t seed) {
    const uint64_t rank = context().team_shares.empty() ? 0 : static_cast<uint64_t>(Team::world().rank());
    return Tensor::uniform(DType::float32, of, 0, below_one(DType::float32),
                           seed + rank * 0xd1342543de82ef95ULL);
  });
  return binary(ElementOp::greater_equal, numbers, p);
}

VariablePtr dropout_mask(Shape shape, double p) {
  return binary(ElementOp::multiply, cast(dropout_kept(std::move(shape), p), DType::float32), 1 / (1 - p));
}

}  // namespace cbk::compute
