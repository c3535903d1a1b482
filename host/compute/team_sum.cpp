// Sums over the ranks of a team: each rank adds up a slice of the elements and sends the result to all
// others.
#include <cstring>
#include <span>

#include "host/base/error.hpp"
#include "host/base/team.hpp"
#include "host/compute/function_kernel.hpp"
#include "host/compute/operators.hpp"
#include "host/tensor/kernels/cast.hpp"

namespace cbk::compute {
namespace {

/// Calls `f(operand, first, count)` for the elements [begin, end) of all operands, one after the other.
template <typename F>
void each_part(const std::vector<Operand>& operands, int64_t begin, int64_t end, const F& f) {
  int64_t before = 0;
  for (const Operand& operand : operands) {
    const int64_t first = std::max(begin - before, int64_t{0});
    const int64_t last = std::min(end - before, operand.numel());
    if (first < last) f(operand, first, last - first);
    before += operand.numel();
  }
}

std::byte* bytes_from(const Operand& operand, int64_t first) {
  return operand.bytes() + first * static_cast<int64_t>(size_of(operand.dtype));
}

std::string elements(const std::vector<Operand>& operands, int64_t begin, int64_t end) {
  std::string out;
  size_t bytes = 0;
  each_part(operands, begin, end, [&](const Operand& operand, int64_t, int64_t count) {
    bytes += static_cast<size_t>(count) * size_of(operand.dtype);
  });
  out.reserve(bytes);
  each_part(operands, begin, end, [&](const Operand& operand, int64_t first, int64_t count) {
    out.append(reinterpret_cast<const char*>(bytes_from(operand, first)),
               static_cast<size_t>(count) * size_of(operand.dtype));
  });
  return out;
}

constexpr int64_t together = 4096;  // elements that are added up at once

/// Adds up to `together` elements at `from`, which need not be aligned, times `weight`.
class Adder {
 public:
  void add(DType dtype, const char* from, double weight, std::span<double> sum) {
    std::memcpy(raw_.data(), from, sum.size() * size_of(dtype));
    if (dtype == DType::float32) return add(reinterpret_cast<const float*>(raw_.data()), weight, sum);
    cast_elements(dtype, reinterpret_cast<const std::byte*>(raw_.data()), DType::float64,
                  reinterpret_cast<std::byte*>(numbers_.data()), static_cast<int64_t>(sum.size()));
    add(numbers_.data(), weight, sum);
  }

 private:
  template <typename T>
  static void add(const T* x, double weight, std::span<double> sum) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * static_cast<double>(x[i]);
  }
  std::vector<std::byte> raw_ = std::vector<std::byte>(together * sizeof(double));
  std::vector<double> numbers_ = std::vector<double>(together);
};

/// Sums in float64, then rounds once.
void write_sum(const std::vector<Operand>& writes, int64_t begin, int64_t end,
               const std::vector<std::string>& of_ranks, const std::vector<double>& weights) {
  Adder adder;
  std::vector<double> all(together);
  size_t at = 0;
  each_part(writes, begin, end, [&](const Operand& operand, int64_t first, int64_t count) {
    for (int64_t done = 0; done < count; done += together) {
      const int64_t some = std::min(together, count - done);
      const auto sum = std::span(all).first(static_cast<size_t>(some));
      std::fill(sum.begin(), sum.end(), 0.0);
      for (size_t rank = 0; rank < of_ranks.size(); ++rank)
        adder.add(operand.dtype, of_ranks[rank].data() + at, weights[rank], sum);
      cast_elements(DType::float64, reinterpret_cast<const std::byte*>(sum.data()), operand.dtype,
                    bytes_from(operand, first + done), some);
      at += static_cast<size_t>(some) * size_of(operand.dtype);
    }
  });
}

void check_same(uint64_t size, uint64_t own) {
  if (size != own)
    fail(Errc::changed, "the ranks add up different tensors: a step must not depend on the rank");
}

/// Adds up the elements [first, last) of all operands.
void sum_part(const std::vector<Operand>& reads, const std::vector<Operand>& writes, int64_t first,
              int64_t last, const std::vector<double>& weights) {
  Team& team = Team::world();
  const auto begin_of = [&](int rank) { return first + (last - first) * rank / team.size(); };
  std::vector<std::string> slices;
  slices.reserve(static_cast<size_t>(team.size()));
  for (int rank = 0; rank < team.size(); ++rank)
    slices.push_back(elements(reads, begin_of(rank), begin_of(rank + 1)));
  const size_t own = slices[static_cast<size_t>(team.rank())].size();
  const std::vector<std::string> received = team.all_to_all(std::move(slices));
  for (const std::string& slice : received) check_same(slice.size(), own);
  const int64_t begin = begin_of(team.rank()), end = begin_of(team.rank() + 1);
  write_sum(writes, begin, end, received, weights);
  const std::vector<std::string> sums = team.exchange(elements(writes, begin, end));
  for (int rank = 0; rank < team.size(); ++rank) {
    size_t at = 0;
    each_part(writes, begin_of(rank), begin_of(rank + 1),
              [&](const Operand& operand, int64_t from, int64_t count) {
                const size_t bytes = static_cast<size_t>(count) * size_of(operand.dtype);
                std::memcpy(bytes_from(operand, from), sums[static_cast<size_t>(rank)].data() + at, bytes);
                at += bytes;
              });
  }
}

void run_sum(const std::vector<Operand>& reads, const std::vector<Operand>& writes, bool is_mean) {
  constexpr int64_t of_rank = 1 << 18;  // elements at once: what is sent stays in the cache
  const int size = Team::world().size();
  const std::vector<double> weights =
      is_mean ? context().team_shares : std::vector<double>(static_cast<size_t>(size), 1.0);
  int64_t total = 0;
  for (const Operand& read : reads) total += read.numel();
  for (const std::string& other : Team::world().exchange(std::to_string(total)))
    check_same(std::stoull(other), static_cast<uint64_t>(total));
  for (int64_t first = 0; first < total; first += of_rank * size)
    sum_part(reads, writes, first, std::min(first + of_rank * size, total), weights);
}

}  // namespace

std::vector<VariablePtr> team_sum(const std::vector<VariablePtr>& given, bool is_mean) {
  if (context().team_shares.empty() || given.empty()) return given;
  std::vector<VariablePtr> out;
  std::vector<Operand> reads, writes;
  for (const VariablePtr& one : given) {
    const VariablePtr dense = contiguous(one->detached());
    reads.push_back(dense->operand());
    out.push_back(Variable::empty(one->dtype(), one->shape(), one->device()));
    writes.push_back(out.back()->operand());
  }
  execute(std::move(reads), std::move(writes),
          [is_mean](const std::vector<Operand>& from, const std::vector<Operand>& to) {
            run_sum(from, to, is_mean);
          });
  return out;
}

}  // namespace cbk::compute
