// Tensors that compute: recorded programs, joined chains, planned memory, threads and products. Gradients and
// operators are tested from Lua.

#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/parallel.hpp"
#include "host/compute/context.hpp"
#include "host/compute/gemm.hpp"
#include "host/compute/operators.hpp"
#include "host/compute/program.hpp"
#include "host/compute/tape.hpp"

using namespace cbk;
using namespace cbk::compute;
using Catch::Matchers::Contains;

namespace {

VariablePtr filled(const Shape& shape, double first) {
  std::vector<double> values(static_cast<size_t>(numel_of(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<double>(i % 97) * 0.25;
  return Variable::from_doubles(DType::float32, shape, values);
}

/// Records `body` and finishes the program with these results.
template <typename Body>
std::unique_ptr<Program> recorded_program(Body body) {
  auto program = std::make_unique<Program>();
  {
    const Scoped recording(context().program, program.get());
    for (const VariablePtr& result : body()) program->keep(result->buffer());
  }
  program->finish();
  return program;
}

}  // namespace

TEST_CASE("a chain of element-wise operators is one pass", "[compute]") {
  const int64_t rows = GENERATE(40, 1104);  // the larger one is fetched ahead
  const VariablePtr x = filled({rows, 1000}, -3), y = filled({rows, 1000}, 1);
  const auto formula = [&] {
    const VariablePtr scaled = binary(ElementOp::multiply, x, 0.9);
    const VariablePtr other = binary(ElementOp::multiply, y, 0.1);  // shares no data with the first
    return binary(ElementOp::divide, binary(ElementOp::add, scaled, other),
                  binary(ElementOp::add, unary(ElementOp::sqrt, y), 1e-3));
  };
  const std::vector<double> eager = formula()->to_doubles();
  VariablePtr result;
  const auto program = recorded_program([&] { return std::vector{result = formula()}; });
  CHECK(program->size().recorded == 6);
  CHECK(program->size().kernels == 1);
  CHECK(program->size().arena_bytes == static_cast<uint64_t>(rows) * 4000);
  program->run();
  CHECK((result->to_doubles() == eager));  // without a print of a million numbers
}

TEST_CASE("a replay allocates nothing, and sees new inputs", "[compute]") {
  const VariablePtr x = filled({64, 48}, 1), w = filled({48, 32}, -2);
  VariablePtr loss;
  const auto program = recorded_program(
      [&] { return std::vector{loss = sum(unary(ElementOp::tanh, matmul(x, w)), {}, false)}; });
  program->run();
  const double before = loss->item();
  copy_into(x, 0.0);
  const auto allocations = Buffer::count().allocations;
  for (int i = 0; i < 20; ++i) program->run();
  CHECK(Buffer::count().allocations == allocations);
  CHECK(loss->item() == 0);
  CHECK(before != 0);
}

TEST_CASE("values that are done give their memory to others", "[compute]") {
  const VariablePtr x = filled({100, 100}, 0.5);
  VariablePtr y;
  const auto program = recorded_program([&] {
    y = x;
    for (int i = 0; i < 10; ++i) y = softmax(y, -1, false);  // not element-wise, so nothing is joined
    return std::vector{y};
  });
  CHECK(program->size().arena_bytes == 2 * 100 * 100 * 4);  // two in turn
}

TEST_CASE("a condition is asked in every run", "[compute]") {
  const VariablePtr flag = full(DType::float32, {}, 0, Device::cpu),
                    total = full(DType::float32, {3}, 1, Device::cpu);
  Program program;
  {
    const Scoped recording(context().program, &program);
    program.begin_condition(flag->operand());
    write_binary(ElementOp::add, total, 2.0);
    program.end_condition();
    write_binary(ElementOp::multiply, total, 10.0);
  }
  program.finish();
  program.run();
  CHECK(total->to_doubles() == std::vector<double>{10, 10, 10});
  copy_into(flag, 1.0);
  program.run();
  CHECK(total->to_doubles() == std::vector<double>{120, 120, 120});
}

TEST_CASE("chains never change what later readers see", "[compute]") {
  const VariablePtr x = filled({5000}, 1), y = filled({5000}, 2);
  VariablePtr kept;
  const auto program = recorded_program([&] {
    kept = binary(ElementOp::add, x, y);  // the old x
    write_binary(ElementOp::multiply, x, 3.0);
    write_binary(ElementOp::subtract, x, y);
    return std::vector{kept};
  });
  const std::vector<double> a = x->to_doubles(), b = y->to_doubles();
  program->run();
  const std::vector<double> sums = kept->to_doubles(), now = x->to_doubles();
  for (size_t i = 0; i < a.size(); ++i) {
    REQUIRE(sums[i] == a[i] + b[i]);
    REQUIRE(now[i] == a[i] * 3 - b[i]);
  }
}

TEST_CASE("reading and misuse are refused with a reason", "[compute]") {
  const VariablePtr x = filled({2, 3}, 1);
  Program program;
  {
    const Scoped recording(context().program, &program);
    const VariablePtr y = binary(ElementOp::add, x, 1.0);
    CHECK_THROWS_WITH(y->item(), Contains("one element"));
    CHECK_THROWS_WITH(y->to_doubles(), Contains("step_closure"));
  }
  CHECK_THROWS_WITH(binary(ElementOp::add, x, filled({4}, 1)), Contains("[2, 3] and [4]"));
  CHECK_THROWS_WITH(matmul(x, x), Contains("do not fit together"));
  x->set_requires_grad(true);
  CHECK_THROWS_WITH(write_binary(ElementOp::add, x, 1.0), Contains("no_grad"));
  const VariablePtr y = unary(ElementOp::exp, x), loss = sum(unary(ElementOp::square, y), {}, false);
  {
    const Scoped no_grad(context().records_gradients, false);
    write_binary(ElementOp::add, y, 1.0);
  }
  CHECK_THROWS_WITH(run_backward(loss, nullptr), Contains("changed in place"));
}

TEST_CASE("threads: nested work, exceptions, several callers, another number meanwhile", "[compute]") {
  const int before = thread_count();
  set_thread_count(3);
  std::atomic<int> count{0};
  parallel_for(10, [&](int64_t) { parallel_for(10, [&](int64_t) { ++count; }); });
  CHECK(count == 100);
  CHECK_THROWS_WITH(parallel_for(50,
                                 [](int64_t i) {
                                   if (i == 33) fail(Errc::value, "task {}", i);
                                 }),
                    Contains("task 33"));
  count = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) parallel_for(8, [&](int64_t) { ++count; });
    });
  }
  for (int round = 0; round < 20; ++round) set_thread_count(round % 3 + 1);
  for (std::thread& caller : callers) caller.join();
  CHECK(count == 4 * 200 * 8);
  CHECK_THROWS_WITH(set_thread_count(0), Contains("1 to 256"));
  set_thread_count(before);
}

TEMPLATE_TEST_CASE("products of all sizes and layouts", "[compute]", float, double) {
  for (const auto& [rows, columns, depth] :
       std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {7, 33, 5}, {64, 17, 3}, {6, 32, 100}, {130, 70, 90}}) {
    for (int layout = 0; layout < 4; ++layout) {
      std::vector<TestType> a(static_cast<size_t>(rows * depth)), b(static_cast<size_t>(depth * columns)),
          out(static_cast<size_t>(rows * columns), 1);
      for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<TestType>(static_cast<double>(i % 13) - 6);
      for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<TestType>(static_cast<double>(i % 7) - 3);
      const bool ta = (layout & 1) != 0, tb = (layout & 2) != 0;
      gemm<TestType>({a.data(), ta ? rows : depth, ta}, {b.data(), tb ? depth : columns, tb},
                     {out.data(), columns, false}, rows, columns, depth, 2, true);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          double want = 0;
          for (int64_t k = 0; k < depth; ++k) {
            want += static_cast<double>(a[ta ? k * rows + i : i * depth + k]) *
                    static_cast<double>(b[tb ? j * depth + k : k * columns + j]);
          }
          REQUIRE(static_cast<double>(out[i * columns + j]) == 1 + 2 * want);  // whole numbers: exact
        }
      }
    }
  }
}

TEST_CASE("a lazy program gives tensors with the bits of memory", "[compute]") {
  const Tensor p = Tensor::normal(DType::float32, {700, 200}, 0, 1, 1),
               g = Tensor::normal(DType::bfloat16, {700, 200}, 0, 1, 2);
  const auto step = [](const VariablePtr& x, const VariablePtr& gradient) {
    write_binary(ElementOp::multiply, x, 0.99);
    write_addcmul(x, cast(gradient, DType::float32), -0.1, 1.0);
  };
  const VariablePtr memory = Variable::from_tensor(p);
  step(memory, Variable::from_tensor(g));
  Program program(Program::Reading::in_place);
  VariablePtr lazy;
  {
    const Scoped recording(context().program, &program);
    lazy = Variable::from_tensor(p);
    step(lazy, Variable::from_tensor(g));
  }
  program.keep(lazy->buffer());
  const auto live = Buffer::count().live_bytes;
  program.finish_lazily();
  CHECK(Buffer::count().live_bytes == live);
  const auto result = program.value_of(lazy->buffer().get());
  REQUIRE(result.has_value());
  CHECK(result->to_bytes() == memory->to_tensor().to_bytes());
}
